"""Hardware counters of variants: runs the same plans on the same inputs natively under Nsight Compute."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.execution.protocol import Device
from harness.execution.run_settings import DEFAULT_SETTINGS, RunSettings
from harness.execution.traffic.traffic_account import HardwareLaunch, HardwareTraffic, Level
from harness.gpu.nsight_compute import LEVEL_METRICS, TRAFFIC_METRICS, Counters, Replay, read_counters
from harness.model.discovery import REPOSITORY_ROOT
from harness.model.problem import BaseProblem
from harness.model.tile_sizes import TileSizes
from harness.support.errors import CountersUnavailable

"""The folder from which `harness` can be imported."""


@dataclass(frozen=True)
class Run:
    """One run of one variant."""

    variant: str
    problem: BaseProblem
    settings: RunSettings = DEFAULT_SETTINGS
    tile: TileSizes | None = None
    """The tile sizes, if they differ from the variant's default; else None."""

    def request(self) -> dict[str, Any]:
        """The request for `profiled_run`, as JSON."""
        fields = {"variant": self.variant, "operation": self.problem.operation, "problem": self.problem.to_fields()}
        inputs = {"regime": self.settings.regime, "seed": self.settings.seed}
        return {**fields, **inputs, "tile": self.tile and dict(self.tile)}


def measure_hardware(run: Run, device: Device, plugins: Sequence[Path] = ()) -> HardwareTraffic:
    """Bytes of one variant at the levels that have hardware counters, on `device`, the GPU of this process.

    Raises `CountersUnavailable` as `profile` does.
    """
    (counters,) = profile([run], TRAFFIC_METRICS, plugins)
    return HardwareTraffic(device, tuple(HardwareLaunch(one.name, _levels(one)) for one in counters))


def _levels(counters: Counters) -> tuple[Level, ...]:
    levels = []
    for name, metrics in LEVEL_METRICS.items():
        counts = counters.total(metrics.read), counters.total(metrics.written)
        levels.append(Level(name, *(None if count is None else count * metrics.unit_bytes for count in counts)))
    return tuple(levels)


def profile(
    runs: Sequence[Run], metrics: Sequence[str], plugins: Sequence[Path] = (), replay: Replay = Replay.LAUNCH
) -> list[tuple[Counters, ...]]:
    """Counters of each run, by the kernels' names in the plan: one set per launch, or one in all for `Replay.PLAN`.

    Raises `CountersUnavailable` if ncu is missing or may not read counters, or if a run fails under it.
    """
    if not runs:  # with no kernels at all ncu reports an error
        return []
    with tempfile.TemporaryDirectory() as folder:
        request, reply = Path(folder, "request.json"), Path(folder, "reply.json")
        request.write_text(
            json.dumps({"plugins": [str(path.resolve()) for path in plugins], "runs": [run.request() for run in runs]})
        )
        program = [sys.executable, "-m", "harness.gpu.profiled_run", str(request), str(reply)]
        try:
            counters = read_counters(program, metrics, replay=replay, folder=REPOSITORY_ROOT)
        except CountersUnavailable:
            _kernels(reply)  # if the program itself failed, its own message is more specific
            raise
        kernels = _kernels(reply)
    if kernels is None:
        raise CountersUnavailable("the program that ncu ran ended too early; 'compare --device gpu' may show why")
    return _by_run(counters, kernels, replay)


def _kernels(reply: Path) -> list[list[str]] | None:
    """The kernels of each run; None if the program did not complete."""
    if not reply.exists():
        return None
    answer = json.loads(reply.read_text())
    if answer["error"]:
        raise CountersUnavailable(f"the run under ncu failed: {' '.join(answer['error'].split())}")
    kernels: list[list[str]] = answer["runs"]
    return kernels


def _by_run(counters: list[Counters], kernels: list[list[str]], replay: Replay) -> list[tuple[Counters, ...]]:
    """Distribute the counters to the runs, in order."""
    sizes = [1 if replay is Replay.PLAN else len(names) for names in kernels]
    if len(counters) != sum(sizes):
        raise CountersUnavailable(f"ncu has counters of {len(counters)} launches where {sum(sizes)} were run")
    if replay is Replay.LAUNCH:
        counters = [_named(one, name) for one, name in zip(counters, (name for names in kernels for name in names))]
    rest = iter(counters)
    return [tuple(next(rest) for _ in range(size)) for size in sizes]


def _named(counters: Counters, kernel: str) -> Counters:
    # ncu shows the demangled name: with arguments for C++, and with much more around it for Numba.
    if kernel not in counters.name:
        raise CountersUnavailable(f"ncu has counters of kernel {counters.name} where {kernel} was run")
    return Counters(kernel, counters.values)
