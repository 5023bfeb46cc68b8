"""The GPUs of a plan's devices.

Device d of a plan is on GPU d. Where there are fewer GPUs, devices take them in turns. Those of one GPU share its
stream, so that their launches follow each other in the plan's order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from harness.gpu.context import GpuContext


class PlanDevices:
    """The contexts of the GPUs on which a plan of so many devices runs, that of `first` first."""

    def __init__(self, first: GpuContext, count: int) -> None:
        self.contexts: Sequence[GpuContext] = first.peers(count) if count > 1 else [first]

    @property
    def first(self) -> GpuContext:
        """The context on whose stream all work of a plan begins and ends."""
        return self.contexts[0]

    def on(self, device: int) -> GpuContext:
        """The context of a plan's device."""
        return self.contexts[device % len(self.contexts)]

    @contextmanager
    def memory(self) -> Iterator[None]:
        """A context manager like `GpuContext.memory`, of all GPUs. The first one is current."""
        with ExitStack() as stack:
            for context in reversed(self.contexts):
                stack.enter_context(context.memory())
            yield

    def synchronize(self) -> None:
        """Wait for all work on all GPUs. Raises CUDA's errors."""
        for context in reversed(self.contexts):
            context.stream.synchronize()
