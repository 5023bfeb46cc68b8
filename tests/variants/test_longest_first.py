"""The order in which blocks of rows start under packed documents: those that visit most tiles of keys first."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from emulators import emulator
from test_fa2_mma import VARIANTS

from harness.model.operation import draw_inputs
from harness.model.plan import Plan
from harness.model.variant import Variant
from harness.operations.attention.masks import parse_mask
from harness.operations.attention.problem import Problem
from variants._mma import MmaTile
from variants._tiles.longest_first import ORDER, THREADS, LongestFirst
from variants._tiles.schedule import Schedule

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
    plan = variant.plan(problem, dataclasses.asdict(TILE))
    ranking = dataclasses.replace(plan, launches=plan.launches[:1])
    monkeypatch.setattr(Plan, "output_names", lambda *_: {ORDER})
    order = emulator().run(problem, ranking, draw_inputs(problem, "normal", seed=1)).outputs[ORDER]

    schedule = Schedule(problem, TILE)
    assert order.shape == (problem.batch, len(schedule.first_rows))
    for of_sequence, visits, ranks in zip(order, schedule.visits, LongestFirst(schedule).ranks, strict=True):
        assert sorted(of_sequence) == list(range(len(visits)))
        assert (np.diff(visits[of_sequence]) <= 0).all()
        assert (ranks[of_sequence] == np.arange(len(ranks))).all()
    if started is not None:
        assert order.tolist() == started


def test_more_blocks_of_rows_than_one_block_ranks():
    assert len(Schedule(packed(MANY, q_len=8336), TILE).first_rows) > THREADS


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
@pytest.mark.parametrize("mask", ["causal", "window:64+causal", "none"])
def test_a_band_needs_no_order(variant: Variant, mask: str):
    plan = variant.plan(Problem(q_len=600, kv_len=600, head_dim=64, dtype="bfloat16", mask=parse_mask(mask)))
    assert len(plan.launches) == 1
    assert ORDER not in {buffer.name for buffer in plan.buffers}
