"""Times on the GPU that mean what they say: cold caches, no launch gaps, compiling and warming up left out.

One sample: the L2 cache is overwritten, the stream is held back by a kernel that does nothing but wait, and only then
come the event that starts the clock, the launches, and the event that stops it. While the stream is held, the host puts
all of this into the queue, so that what lies between the events is the GPU's work and not the host's. The flush is that
of Triton's `do_bench`; holding the stream back is how NVBench keeps the host out of its times.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from harness.gpu.context import GpuContext

Enqueue = Callable[[], None]
"""Puts all launches of one run into the stream, and does not wait for them."""

FLUSH_L2_SIZES = 4
"""How many times the L2's size is overwritten: twice is enough for least recently used, and no cache is quite that."""
SHORTEST_HOLD_NS = 50_000
SHORTEST_MEASURED_MS = 20.0
"""Sustained runs are timed in batches of about that: events and their waiting do not count then."""

_HOLD = """
extern "C" __global__ void hold(unsigned long long nanoseconds)
{
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - start < nanoseconds);
}
"""


class Stopwatch:
    """Measures on one context's stream. Its flush buffer belongs to the memory that it was made in."""

    def __init__(self, context: GpuContext) -> None:
        self._context = context
        cupy = context.cupy
        self._flush = cupy.empty(FLUSH_L2_SIZES * max(1, context.l2_bytes), dtype="uint8")
        self._hold = cupy.RawKernel(_HOLD, "hold")
        self._start, self._end = cupy.cuda.Event(), cupy.cuda.Event()

    def cold_ms(self, enqueue: Enqueue) -> float:
        """One run with nothing of its data in L2."""
        stream = self._context.stream
        hold_ns = SHORTEST_HOLD_NS
        while True:
            self._flush.data.memset_async(0, self._flush.nbytes, stream)
            self._hold((1,), (1,), (_uint64(hold_ns),))
            held_from = time.perf_counter_ns()
            self._start.record(stream)
            enqueue()
            self._end.record(stream)
            enqueued_ns = time.perf_counter_ns() - held_from
            self._end.synchronize()
            if enqueued_ns < hold_ns:
                return float(self._context.cupy.cuda.get_elapsed_time(self._start, self._end))
            # The host was slower than the stream was held: launch gaps may be in it. Once more, held longer.
            hold_ns = 2 * enqueued_ns

    def sustained_ms(self, enqueue: Enqueue, seconds: float) -> float:
        """Mean time of a run, back to back for at least so many seconds, caches and clocks as they then are."""
        stream, total_ms, runs, batch = self._context.stream, 0.0, 0, 1
        while total_ms < 1000 * seconds:
            self._start.record(stream)
            for _ in range(batch):
                enqueue()
            self._end.record(stream)
            self._end.synchronize()
            took_ms = float(self._context.cupy.cuda.get_elapsed_time(self._start, self._end))
            if took_ms < SHORTEST_MEASURED_MS:
                batch *= 2
                continue
            total_ms, runs = total_ms + took_ms, runs + batch
        return total_ms / runs


def _uint64(value: int) -> Any:
    import numpy as np

    return np.uint64(value)
