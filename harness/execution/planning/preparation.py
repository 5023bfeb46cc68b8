"""Compiles kernels in the background on all cores, while earlier variants run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from types import TracebackType

from harness.execution.planning.variant_calls import make_plan
from harness.execution.protocol import Executor, Preparer
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.support.cores import usable_cores

_LISTENING_SECONDS = 0.1
"""Interval at which a wait checks for Ctrl-C."""


class Preparation:
    """A context manager that compiles the plans of `variants` for executors that can compile ahead.

    Errors are ignored here: the run meets them again and reports them in the variant's row.
    """

    def __init__(self, variants: Sequence[Variant], problem: BaseProblem, *executors: Executor | None) -> None:
        # More than cores: variants of one language take turns in its process, and those who wait use no core.
        self._pool = ThreadPoolExecutor(4 * usable_cores())
        self._variants = variants
        self._done: dict[str, list[Future[None]]] = {variant.name: [] for variant in variants}
        for executor in executors:
            if isinstance(executor, Preparer):
                for variant in variants:
                    self._done[variant.name].append(self._pool.submit(_prepare, variant, problem, executor))

    def __enter__(self) -> Preparation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=kind is None, cancel_futures=True)

    def as_prepared(self) -> Iterator[Variant]:
        """Yield each variant once its kernels are compiled or have failed to compile, in order of completion."""
        left = list(self._variants)
        while left:
            pending = {variant.name: [f for f in self._done[variant.name] if not f.done()] for variant in left}
            ready = next((variant for variant in left if not pending[variant.name]), None)
            if ready is not None:
                left.remove(ready)
                yield ready
            else:
                unfinished = {future for futures in pending.values() for future in futures}
                wait(unfinished, timeout=_LISTENING_SECONDS, return_when=FIRST_COMPLETED)

    def wait(self, variant: Variant) -> None:
        """Block until this variant's kernels are compiled or have failed to compile."""
        pending = set(self._done[variant.name])
        while pending:
            # NVRTC's signal handlers keep Ctrl-C from ending an indefinite wait.
            pending = wait(pending, timeout=_LISTENING_SECONDS).not_done


def _prepare(variant: Variant, problem: BaseProblem, preparer: Preparer) -> None:
    with contextlib.suppress(Exception):
        preparer.prepare(problem, make_plan(variant, problem, preparer.device.arch))
