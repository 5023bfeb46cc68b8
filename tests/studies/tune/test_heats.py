"""A tuning on several GPUs: who is compared with whom, and on what scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from harness.execution.cluster.cluster_client import WorkerLost
from harness.execution.protocol import Device
from harness.execution.run_settings import Effort, RunSettings
from harness.execution.timings import BenchResult, BenchRow, Ceilings
from harness.operations.attention.problem import Problem
from harness.studies.tune.spread import TileTask, on_one_scale, spread_timing
from harness.support.errors import SandboxError

pytestmark = pytest.mark.compiles(False)

PROBLEM = Problem(heads=1, q_len=5, kv_len=7, head_dim=8)


def row(name: str, time_ms: float, noise: float = 0.001, verdict: str = "pass") -> BenchRow:
    low, high = time_ms * (1 - noise), time_ms * (1 + noise)
    return BenchRow(variant=name, kind="variant", verdict=verdict, time_ms=time_ms, time_low_ms=low, time_high_ms=high)


def heat(*rows: BenchRow, gpu: str = "first") -> BenchResult:
    device = Device(kind="gpu", name=gpu, arch="sm_90")
    ceilings = Ceilings(1e12, 1e15, "float32")
    return BenchResult(
        problem=PROBLEM,
        regime="normal",
        seed=0,
        device=device,
        driver=None,
        torch=None,
        ceilings=ceilings,
        floor_ms=0.0,
        effort=Effort(),
        rows=rows,
    )


def told(result: BenchResult) -> dict[str, tuple[int | None, float | None]]:
    return {each.variant: (each.rank, each.time_ms) for each in result.rows}


def test_a_slower_gpu_is_no_disadvantage():
    # The second GPU takes twice as long for everything: "good" is the best, though 3 ms are more than 2.
    joined = on_one_scale([heat(row("default", 4), row("fair", 2)), heat(row("default", 8), row("good", 3))], "default")
    assert told(joined) == {"good": (1, 1.5), "fair": (2, 2.0), "default": (3, 4.0)}
    assert joined.device.name == "first"


def test_what_cannot_be_told_apart_shares_a_rank():
    rows = heat(row("default", 4), row("fair", 2.0)), heat(row("default", 8, noise=0.03), row("good", 3.9))
    assert {name: rank for name, (rank, _) in told(on_one_scale(rows, "default")).items()} == {
        "good": 1,
        "fair": 1,
        "default": 3,
    }


def test_half_widths_add_up_by_their_squares():
    here = heat(row("default", 8, noise=0.04), row("good", 4, noise=0.03)), "default"
    joined = on_one_scale([heat(row("default", 4, noise=0.12)), here[0]], here[1])
    good = next(each for each in joined.rows if each.variant == "good")
    assert good.time_ms == 2.0
    assert good.time_low_ms == pytest.approx(2 * (1 - math.sqrt(0.03**2 + 0.04**2 + 0.12**2)))
    assert good.time_high_ms == pytest.approx(2 * (1 + math.sqrt(0.03**2 + 0.04**2 + 0.12**2)))


@pytest.mark.parametrize("where", ["first", "second"])
def test_without_the_default_times_count_as_they_are(where: str):
    broken = replace(row("default", 1, verdict="error"), time_ms=None, time_low_ms=None, time_high_ms=None)
    first = broken if where == "first" else row("default", 4)
    second = broken if where == "second" else row("default", 8)
    joined = on_one_scale([heat(first, row("fair", 2)), heat(second, row("good", 3))], "default")
    assert told(joined)["good"][1] == 3.0
    assert told(joined)["fair"] == (1, 2.0)
    assert [each.variant for each in joined.rows][:2] == ["fair", "good"]


class ClusterClient:
    """Of so many GPUs; those in `dead` are lost with what they were given."""

    def __init__(self, size: int, dead: Sequence[int] = ()) -> None:
        self.size, self.dead = size, dead
        self.given: list[TileTask] = []

    def map_unordered(
        self, function: Callable[[Any], Any], arguments: Mapping[Any, TileTask]
    ) -> Iterator[tuple[Any, Any]]:
        for place, (key, asked) in enumerate(arguments.items()):
            self.given.append(asked)
            times = (row(name, float(name) * (1 + place)) for name in asked.names)
            yield key, WorkerLost("its GPU is lost") if place in self.dead else heat(*times)


NAMES = ("3", "1", "4", "1.5", "9")
ASKED = TileTask("token", None, NAMES, PROBLEM, RunSettings())  # type: ignore[arg-type]


def test_each_gpu_times_a_group_and_the_default():
    cluster = ClusterClient(2)
    noted: list[tuple[str, ...]] = []
    result = spread_timing(cluster, ASKED, lambda names: None, lambda names, found: noted.append(names))  # type: ignore[arg-type]
    assert [asked.names for asked in cluster.given] == [("3", "4", "9"), ("3", "1", "1.5")]
    assert [asked.compared_with for asked in cluster.given] == [frozenset(), frozenset({"3"})]
    assert noted == [asked.names for asked in cluster.given]
    assert told(result) == {"1": (1, 1.0), "1.5": (2, 1.5), "3": (3, 3.0), "4": (4, 4.0), "9": (5, 9.0)}


def test_known_heats_are_not_run():
    cluster = ClusterClient(2)
    kept = {("3", "4", "9"): heat(row("3", 3), row("4", 4), row("9", 9))}
    result = spread_timing(cluster, ASKED, kept.get, lambda names, found: None)  # type: ignore[arg-type]
    assert [asked.names for asked in cluster.given] == [("3", "1", "1.5")]
    assert cluster.given[0].compared_with == frozenset({"3"})
    assert [each.variant for each in result.rows] == ["1", "1.5", "3", "4", "9"]


@pytest.mark.parametrize("dead", [0, 1])
def test_a_lost_gpu_costs_its_own_group(dead: int):
    result = spread_timing(ClusterClient(2, (dead,)), ASKED, lambda names: None, lambda names, found: None)  # type: ignore[arg-type]
    lost = {("4", "9"), ("1", "1.5")}
    gone = sorted(lost)[1 - dead]
    assert {each.variant for each in result.rows if each.verdict == "error"} == set(gone)
    assert {each.variant for each in result.rows if each.verdict == "pass"} == set(NAMES) - set(gone)


def test_without_any_gpu_it_is_an_error():
    with pytest.raises(SandboxError, match="its GPU is lost"):
        spread_timing(ClusterClient(2, (0, 1)), ASKED, lambda names: None, lambda names, found: None)  # type: ignore[arg-type]
