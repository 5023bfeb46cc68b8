"""Measures problems of the table: kernels are compiled and questions posed by many processes, then one process times.

Processes that fail, such as by a fault of a kernel, are replaced, and the problem has no figures.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness import BackwardProblem, Registry, Variant
from harness.execution.judging.spot_check import choose_spots
from harness.execution.run_settings import Effort, RunSettings
from harness.execution.timings import Ceilings
from harness.gpu.contenders import INPUT_SETS, Prepared, bench_on_gpu, measure_ceilings, prepare_on_gpu
from harness.gpu.context import GpuContext
from harness.gpu.stopwatch import Stopwatch
from harness.model.contenders import flash_attention_4
from harness.model.discovery import discover
from harness.model.problem import BaseProblem
from scripts.hopper import backward_inputs
from scripts.hopper.problems import DTYPE, Group

SETTINGS = RunSettings(effort=Effort(noise=0.004, most_samples=11, most_seconds=1.0, sustained_seconds=0.0))
SPOT_FLOPS = 4e8
"""Cost of the oracle for each set of inputs."""
ENVIRONMENT = {
    # There are as many processes as cores.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # FlashAttention-4 keeps what it compiles on disk, as other compilers do anyway: the process that times loads it.
    "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    # The driver's cache of compiled PTX.
    "CUDA_CACHE_MAXSIZE": str(4 << 30),
}
FORWARD = "fa3-cupy"
"""The variant that computes O and lse of backward problems."""


@dataclass(frozen=True)
class Item:
    """A problem of a group."""

    group: Group
    problem: BaseProblem

    @property
    def key(self) -> dict[str, Any]:
        """What identifies it in a record."""
        return {"group": self.group.name, "problem": self.problem.to_short_fields()}

    @property
    def kernels(self) -> tuple[Any, ...]:
        """What its kernels depend on, approximately."""
        return self.group.name, self.problem.build_key, getattr(self.problem, "head_dim", None)


@functools.cache
def _registry() -> Registry:
    return discover().registry


def _variants(item: Item) -> list[Variant]:
    return [_registry().get(name) for name in item.group.variants_of(item.problem)]


def prepare(item: Item, file: Path) -> float:
    """Prepare in a worker, write the result to a file, and return the seconds that it took."""
    begun = time.monotonic()
    posed = _posed_on_gpu(item.problem) if isinstance(item.problem, BackwardProblem) else None
    prepared = prepare_on_gpu(
        _variants(item),
        item.problem,
        SETTINGS,
        left_out=item.group.left_out,
        whole_flops=SPOT_FLOPS,
        prepared=None if posed is None else posed[0],
    )
    if posed is not None:
        sets = zip(prepared.spots, posed[1], strict=True)
        prepared = Prepared(tuple(tuple(replace(each, inputs=kept) for each in spots) for spots, kept in sets))
    file.write_bytes(pickle.dumps(prepared, protocol=5))
    with contextlib.suppress(ImportError):
        import torch

        torch.cuda.empty_cache()
    return time.monotonic() - begun


def _posed_on_gpu(problem: BackwardProblem) -> tuple[Prepared, list[Mapping[str, Any]]]:
    """Questions of a backward problem with O and lse from the GPU, and the inputs to keep of each set."""
    context, forward = GpuContext(), _registry().get(FORWARD)
    seeds = range(SETTINGS.seed, SETTINGS.seed + INPUT_SETS)
    sets = [backward_inputs.draw(problem, forward, seed, context) for seed in seeds]
    spots = tuple(choose_spots(problem, arrays, SPOT_FLOPS) for arrays, _ in sets)
    return Prepared(spots), [kept for _, kept in sets]


@functools.cache
def _ceilings() -> Ceilings:
    """The GPU's peak rates, measured once by the process that times."""
    context = GpuContext()
    with context.memory():
        return measure_ceilings(context, Stopwatch(context), DTYPE)


def measure(item: Item, file: Path) -> dict[str, Any]:
    """Time all contenders of a problem, in the process that times. Returns an entry of the record."""
    prepared: Prepared = replace(pickle.loads(file.read_bytes()), ceilings=_ceilings())
    file.unlink()
    result = bench_on_gpu(
        _variants(item),
        item.problem,
        SETTINGS,
        libraries=True,
        step=lambda _: None,
        left_out=item.group.left_out,
        prepared=prepared,
    )
    rows = {}
    for row in result.rows:
        if row.time_ms is None:
            rows[row.variant] = {"kind": row.kind, "verdict": row.verdict, "reason": row.reason}
            continue
        times = [row.time_low_ms, row.time_ms, row.time_high_ms]
        rows[row.variant] = {
            "kind": row.kind,
            "ms": [None if each is None else round(each, 5) for each in times],
            "runs": row.samples,
            "error": None if row.error_over_budget is None else round(row.error_over_budget, 3),
        }
    return item.key | {"rows": dict(sorted(rows.items()))}


def _import_everything() -> None:
    """Import the variants and the libraries."""
    _registry()
    with contextlib.suppress(Exception):
        import torch

        torch.zeros(1, device="cuda")
        flash_attention_4.interface()


def ceilings_and_versions() -> dict[str, Any]:
    """What is recorded of the GPU and the libraries, in the process that times."""
    from harness.gpu.contenders import torch_version
    from harness.model.contenders.library_versions import library_versions

    ceilings = _ceilings()
    return {
        "copy_bytes_per_s": round(ceilings.copy_bytes_per_s),
        "matrix_flops": round(ceilings.matrix_flops),
        "libraries": library_versions() if torch_version() is not None else {},
    }


def prepared_files(
    items: Sequence[Item], folder: Path, jobs: int, tell: Callable[[str], None]
) -> dict[int, Path | str]:
    """Prepare all items in parallel. Returns the file of each by its number, or why there is none."""
    found: dict[int, Path | str] = {}
    left = _new_kernels_first(items)
    while left:
        with _pool(jobs) as pool:
            futures = {pool.submit(prepare, item, folder / f"{n}.pickle"): n for n, item in left.items()}
            broken = False
            for future in as_completed(futures):
                number = futures[future]
                try:
                    seconds = future.result()
                except BrokenProcessPool:
                    broken = True
                    continue
                except Exception as error:
                    found[number] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
                    tell(f"prepared {len(found)}/{len(items)}: {left[number].problem.headline}: {found[number]}")
                else:
                    found[number] = folder / f"{number}.pickle"
                    tell(f"prepared {len(found)}/{len(items)} in {seconds:.1f} s: {left[number].problem.headline}")
        left = {n: item for n, item in left.items() if n not in found}
        if broken and jobs == 1:
            found |= dict.fromkeys(left, "the process that prepared it died")
            left = {}
        elif broken:
            # A process died, and takes what others were at with it. One at a time tells which it was.
            jobs = max(1, jobs // 4)
    return found


def _new_kernels_first(items: Sequence[Item]) -> dict[int, Item]:
    """Items by number: those of slow compilers, then the first of each kernel, so that others find it compiled."""
    seen: Counter[tuple[Any, ...]] = Counter()
    places = []
    for number, item in enumerate(items):
        is_slow = item.group.variants_of(item.problem) != item.group.variants
        places.append((not is_slow, seen[item.kernels], number))
        seen[item.kernels] += 1
    return {number: items[number] for *_, number in sorted(places)}


class Timing:
    """The process that times, one problem after the other. It is replaced when it dies or has lost its GPU context."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def begin(self) -> None:
        """Let it import what it needs, without waiting."""
        self._pool = _new_pool(1)
        self._pool.submit(_import_everything)

    def about(self) -> dict[str, Any]:
        """`ceilings_and_versions` of that process."""
        return self._run(ceilings_and_versions)

    def measure(self, item: Item, file: Path) -> dict[str, Any]:
        """`measure` of that process; an entry with the reason if that fails."""
        try:
            entry = self._run(measure, item, file)
        except Exception as error:
            self.end()
            return item.key | {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        if not any("ms" in row for row in entry["rows"].values()):
            self.end()
        return entry

    def _run(self, function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
        if self._pool is None:
            self._pool = _new_pool(1)
        return self._pool.submit(function, *arguments).result()

    def end(self) -> None:
        """End the process."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _new_pool(jobs: int) -> ProcessPoolExecutor:
    os.environ.update(ENVIRONMENT)
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))


@contextlib.contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    with _new_pool(jobs) as pool:
        yield pool
