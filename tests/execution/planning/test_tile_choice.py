"""Tile sizes that a user asks for, and what variants declare."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from numpy_executor import NumpyExecutor

from harness.execution.comparison import compare
from harness.execution.planning.tiles import choose_tile, parse_tile, require_tile, tile_names, tile_of, with_tile
from harness.execution.planning.variant_calls import claimed_traffic, declared_tiles, make_plan
from harness.execution.run_settings import RunSettings
from harness.model.discovery import discover
from harness.model.operation import operation_named
from harness.model.plan import Buffer, Plan
from harness.model.problem import BaseProblem
from harness.model.tile_sizes import TileSizes
from harness.model.traffic import Traffic
from harness.model.variant import Variant
from harness.operations.attention.problem import Problem
from harness.options.sweep import Sweep
from harness.studies.traffic.sweep_report import other_sizes, sweep_report, what_is_fixed
from harness.studies.traffic.sweep_run import run_sweep
from harness.support.errors import PlanError, UsageError

PROBLEM = Problem(heads=1, q_len=4, kv_len=4, head_dim=4)
TILES = [{"Br": 4, "Bc": 2}, {"Br": 2, "Bc": 2}, {"Br": 8, "Bc": 1}]


def tiled(name: str = "tiled", tiles: object = TILES) -> Variant:
    """A variant whose plan and claim tell which tile they were given."""

    def plan(problem: Problem, tile: TileSizes | None = None) -> Plan:
        size = TILES[0] if tile is None else tile
        return Plan((), (Buffer("scratch", (size["Br"], size["Bc"]), "float32"),))

    def claim(problem: Problem, tile: TileSizes | None = None) -> Traffic:
        size = TILES[0] if tile is None else tile
        return Traffic(size["Br"], size["Bc"])

    return Variant(name=name, plan=plan, claim=claim, tiles=lambda problem: tiles)  # type: ignore[arg-type,return-value]


PLAIN = Variant(name="plain", plan=lambda problem: Plan(()))


def test_a_tile_is_read_as_it_is_written():
    assert parse_tile(" Br=32, Bc = 64") == {"Br": 32, "Bc": 64}


@pytest.mark.parametrize(
    "text", ["", "Br", "Br=", "Br=x", "Br=-1", "Br=²", "=4", "Br=1,", "Br=1;Bc=2", "Br=" + "9" * 99]
)
def test_what_is_no_tile_is_one_line(text: str):
    with pytest.raises(UsageError, match=r"is not NAME=N\[,NAME=N\], such as Br=32,Bc=64"):
        parse_tile(text)


def test_a_size_said_twice():
    with pytest.raises(UsageError, match="has Br twice"):
        parse_tile("Br=1,Br=2")


def test_plan_and_claim_are_asked_with_the_tile():
    chosen = with_tile(tiled(), {"Br": 2})
    assert tile_of(chosen, PROBLEM) == {"Br": 2, "Bc": 2}
    assert make_plan(chosen, PROBLEM).buffers[0].shape == (2, 2)
    assert claimed_traffic(chosen, PROBLEM) == Traffic(2, 2)
    assert make_plan(tiled(), PROBLEM).buffers[0].shape == (4, 2)
    assert with_tile(PLAIN, {"Br": 2}).claim is None


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"Bx": 2}, "tiled has no tile size 'Bx'; there are Br, Bc"),
        ({"Br": 3}, "tiled has no tile with Br=3 here; Br is one of 2, 4, 8"),
        ({"Br": 8}, "tiled has no tile Br=8,Bc=2 here; there is Br=8,Bc=1"),
        ({"Br": 2, "Bc": 1}, "tiled has no tile Br=2,Bc=1 here; there is Br=2,Bc=2 or Br=8,Bc=1"),
    ],
)
def test_a_tile_that_is_not_declared_names_those_that_are(wanted: TileSizes, words: str):
    with pytest.raises(UsageError) as caught:
        choose_tile([tiled()], PROBLEM, wanted)
    assert str(caught.value) == words
    assert words.removeprefix("tiled has ") == with_tile(tiled(), wanted).supports(PROBLEM)


def test_long_lists_are_cut():
    many = [{"Br": 1, "Bc": 1}, *({"Br": 2, "Bc": size} for size in range(2, 22))]
    with pytest.raises(UsageError, match=r"there is Br=1,Bc=1 or .*Br=2,Bc=8, or 13 others$"):
        choose_tile([tiled(tiles=many)], PROBLEM, {"Br": 2, "Bc": 1})


def test_the_nearest_variant_speaks_where_none_has_the_tile():
    with pytest.raises(UsageError, match=r"^tiled has no tile Br=8,Bc=2"):
        choose_tile([PLAIN, tiled("other", [{"Br": 4, "Bc": 2}]), tiled()], PROBLEM, {"Br": 8})
    with pytest.raises(UsageError, match="plain has no tile sizes to choose from"):
        choose_tile([PLAIN], PROBLEM, {"Br": 8})


def test_one_variant_with_the_tile_is_enough():
    chosen = choose_tile([PLAIN, tiled()], PROBLEM, {"Br": 2})
    assert [v.supports(PROBLEM) for v in chosen] == ["no tile sizes to choose from", None]
    rows = {row.variant: row for row in compare(chosen, PROBLEM, NumpyExecutor(), tile="Br=2").rows}
    assert (rows["plain"].verdict, rows["plain"].reason) == ("unsupported", "no tile sizes to choose from")
    assert (rows["tiled"].tile, rows["plain"].tile) == ("Br=2,Bc=2", None)


@pytest.mark.parametrize(
    ("tiles", "words"),
    [
        ([], "first of them has to be the default"),
        ([{"Br": 4}, {"Bc": 4}], "same names"),
        ([{}], "has to be like"),
        ([{"Br": True}], "has to be like"),
        ([{"Br": 4.0}], "has to be like"),
        ([4], "has to be like"),
        (None, r"tiles\(\) failed: .*TypeError"),
    ],
)
def test_what_a_user_declares_wrongly_is_one_line(tiles: object, words: str):
    broken = tiled("broken", tiles)
    with pytest.raises(PlanError, match=words):
        declared_tiles(broken, PROBLEM)
    (row,) = compare([broken], PROBLEM, NumpyExecutor()).rows
    assert row.verdict == "error"
    # Others can still be swept by their tiles.
    assert tile_names([broken, tiled()], PROBLEM) == ("Br", "Bc")


def test_a_sweep_over_a_tile_size():
    sweep = Sweep("Br", (2, 4, 8), of_tile=True)
    points = run_sweep([tiled(), PLAIN], sweep, [PROBLEM] * 3, NumpyExecutor(), RunSettings(count="never"))
    found = {(point.variant, point.value): point for point in points}
    assert [found["tiled", value].read_bytes for value in (2, 4)] == [2, 4]
    assert found["tiled", 2].tile == {"Br": 2, "Bc": 2}
    assert found["tiled", 8].reason == "no tile Br=8,Bc=2 here; there is Br=8,Bc=1"
    assert found["plain", 2].reason == "no tile sizes to choose from"
    assert not any(point.failed for point in points)
    assert other_sizes(sweep, points) == "Bc=2 (tiled)"
    text = sweep_report(sweep, points, NumpyExecutor().device).render("table")
    assert "by Br; batch 1, heads 1, q_len 4, kv_len 4" in text
    assert "Tile sizes besides Br: Bc=2 (tiled)." in text


def test_what_is_asked_besides_goes_with_every_value():
    sweep = Sweep("Br", (8,), of_tile=True, tile={"Bc": 1})
    (point,) = run_sweep([tiled()], sweep, [PROBLEM], NumpyExecutor(), RunSettings(count="never"))
    assert point.tile == {"Br": 8, "Bc": 1}
    assert other_sizes(sweep, [point]) == ""
    assert what_is_fixed(sweep, [PROBLEM]).endswith("float32, tile Bc=1")


def test_a_sweep_without_any_tile_is_refused():
    sweep = Sweep("Br", (16, 32), of_tile=True)
    with pytest.raises(UsageError, match="Br is one of 2, 4, 8"):
        require_tile([tiled()], [(PROBLEM, sweep.tile_at(value)) for value in sweep.values])
    require_tile([tiled()], [(PROBLEM, {"Br": 16}), (PROBLEM, {"Br": 2})])


def taken(variant: Variant, head_dim: int) -> BaseProblem | None:
    """A problem of the variant's operation, of that head_dim in a dtype that it takes, or None."""
    pages: dict[str, Any] = {"lengths": (300, 0)}
    fields: dict[str, dict[str, Any]] = {
        "mla-decode": {**pages, "latent_dim": head_dim},
        "paged-attention": {**pages, "head_dim": head_dim},
    }
    dense = {"q_len": 300, "kv_len": 300, "head_dim": head_dim}
    made = functools.partial(operation_named(variant.operation).problem, **fields.get(variant.operation, dense))
    problems = (made(dtype=dtype) for dtype in ("float32", "float16"))
    return next((problem for problem in problems if variant.supports(problem) is None), None)


TILED = [variant for variant in discover().registry if variant.tiles is not None]
TAKEN = [(variant, p) for variant in TILED for d in (1, 20, 64, 256) if (p := taken(variant, d)) is not None]


@pytest.mark.parametrize(("variant", "problem"), TAKEN, ids=lambda value: getattr(value, "name", str(value)))
def test_the_first_tile_is_the_default(variant: Variant, problem: BaseProblem):
    assert variant.tiles is not None and variant.claim is not None
    first, *others = variant.tiles(problem)
    assert variant.claim(problem) == variant.claim(problem, first)
    launches, explicit = variant.plan(problem).launches, variant.plan(problem, first).launches
    assert [(a.kernel, a.grid, a.args) for a in launches] == [(b.kernel, b.grid, b.args) for b in explicit]
    assert first not in others
