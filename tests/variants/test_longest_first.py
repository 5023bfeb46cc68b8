"""The order in which blocks of rows start where the mask is no band: those that visit most tiles of keys first."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from emulators import emulator
from fa2_mma_runs import VARIANTS

from harness.emulator.launch.memory.run_memory import RunMemory
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.model.plan import Plan
from harness.model.variant import Variant
from harness.operations.attention.masks import parse_mask
from harness.operations.attention.problem import Problem
from variants._mma import MmaTile
from variants._tiles.longest_first import ORDER, THREADS, LongestFirst
from variants._tiles.schedule import Schedule
from variants._tiles.visits import Visits

TILE = MmaTile(Br=64, Bc=64, warps=4, stages=2)
MANY = "+".join(str(length) for length in (40, 1000, 3, 2500, 700, 64, 128, 3000, 900, 1))


def packed(documents: str, q_len: int = 600, batch: int = 1) -> Problem:
    mask = parse_mask(f"documents:{documents}")
    return Problem(batch=batch, q_len=q_len, kv_len=q_len, head_dim=64, dtype="bfloat16", mask=mask)


@pytest.mark.parametrize(
    ("problem", "started"),
    [
        (packed("30+100+470"), [[2, 9, 8, 7, 6, 5, 4, 3, 1, 0]]),
        (packed("470+100+30"), None),
        (packed("600"), [[9, 8, 7, 6, 5, 4, 3, 2, 1, 0]]),  # as many each: the later ones first
        (packed("64+320+64+152"), [[5, 4, 3, 2, 1, 9, 8, 7, 6, 0]]),
        (packed("64+320+64+152/320+280", batch=2), [[5, 4, 3, 2, 1, 9, 8, 7, 6, 0], [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]]),
        (packed(MANY, q_len=8336), None),
    ],
    ids=lambda value: value.mask.text[:40] if isinstance(value, Problem) else "",
)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_blocks_of_rows_start_by_how_many_tiles_they_visit(
    variant: Variant, problem: Problem, started: list[list[int]] | None, monkeypatch: pytest.MonkeyPatch
):
    order = order_of(variant, problem, monkeypatch)
    schedule = Schedule(problem, TILE)
    assert order.shape == (problem.batch, len(schedule.first_rows))
    for of_sequence, visits, ranks in zip(order, schedule.visits, LongestFirst(schedule).ranks[:, 0], strict=True):
        assert_longest_first(of_sequence, visits, ranks)
    if started is not None:
        assert order.tolist() == started


@pytest.mark.parametrize(
    ("mask", "orders"),
    [
        ("blocks:64x64,3", (1, 1)),
        ("blocks:100x30,5,heads", (1, 4)),
        ("causal+blocks:40x130,2", (1, 1)),
        ("flashmask:2,1", (1, 1)),
        ("documents:100+200+300/400+200+blocks:64x64,3,heads", (2, 4)),
    ],
)
def test_where_tiles_are_listed_each_list_has_its_order(
    mask: str, orders: tuple[int, int], monkeypatch: pytest.MonkeyPatch
):
    problem = Problem(batch=2, heads=4, q_len=600, kv_len=600, head_dim=64, dtype="bfloat16", mask=parse_mask(mask))
    order = order_of(discover().registry.get("fa2-mma-cupy"), problem, monkeypatch)
    schedule = Schedule(problem, TILE)
    assert order.shape == (*orders, len(schedule.first_rows))
    counts, ranks = (np.broadcast_to(x, order.shape) for x in (Visits(schedule).counts, LongestFirst(schedule).ranks))
    for place in np.ndindex(*orders):
        assert_longest_first(order[place], counts[place], ranks[place])
    assert len({tuple(each) for each in counts.reshape(-1, counts.shape[-1])}) == np.prod(orders)


def order_of(variant: Variant, problem: Problem, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """What the launches before the last one leave."""
    plan = variant.plan(problem, dataclasses.asdict(TILE))
    ranking = dataclasses.replace(plan, launches=plan.launches[:-1])
    monkeypatch.setattr(Plan, "output_names", lambda *_: set())
    memories: list[RunMemory] = []
    begin = RunMemory.__init__
    monkeypatch.setattr(
        RunMemory, "__init__", lambda memory, *a, **k: memories.append(memory) or begin(memory, *a, **k)
    )
    emulator().run(problem, ranking, draw_inputs(problem, "normal", seed=1))
    return memories[0].array(ORDER)


def assert_longest_first(order: np.ndarray, visits: np.ndarray, ranks: np.ndarray) -> None:
    assert sorted(order) == list(range(len(visits)))
    assert (np.diff(visits[order]) <= 0).all()
    assert (ranks[order] == np.arange(len(ranks))).all()


def test_more_blocks_of_rows_than_one_block_ranks():
    assert len(Schedule(packed(MANY, q_len=8336), TILE).first_rows) > THREADS


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
@pytest.mark.parametrize("mask", ["causal", "window:64+causal", "none"])
def test_a_band_needs_no_order(variant: Variant, mask: str):
    plan = variant.plan(Problem(q_len=600, kv_len=600, head_dim=64, dtype="bfloat16", mask=parse_mask(mask)))
    assert len(plan.launches) == 1
    assert ORDER not in {buffer.name for buffer in plan.buffers}
