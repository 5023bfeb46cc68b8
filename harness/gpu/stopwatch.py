"""Measures GPU time with cold caches and without launch gaps, compilation or warm-up.

One sample: the L2 cache is overwritten and the stream is blocked by a kernel that only waits; then follow the start
event, the launches, and the stop event. While the stream is blocked, the host enqueues all of this, so that the time
between the events is the GPU's work only. The flush is that of Triton's `do_bench`; blocking the stream is how NVBench
excludes the host from its times.

Of a plan on several GPUs, it is the first one's stream that is blocked, behind the flushes of all of them. The others
begin behind the start event, and the stop event is behind their ends (`PlanRun`).
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from harness.gpu.context import GpuContext
from harness.model.plan import Buffer

Enqueue = Callable[[], None]
"""Enqueues all launches of one run, without waiting for them."""

FLUSH_L2_SIZES = 4
"""The flush writes this multiple of the L2's size: twice would do for a least-recently-used policy, which no cache has
exactly."""
SHORTEST_HOLD_NS = 50_000
SHORTEST_MEASURED_MS = 20.0
"""Duration of a batch of sustained runs, so that the overhead of events is negligible."""

_HOLD = """
extern "C" __global__ void hold(unsigned long long nanoseconds)
{
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - start < nanoseconds);
}
"""


class Stopwatch:
    """Measures on one context's stream. The flush buffers belong to the memory scope in which it was created."""

    def __init__(self, context: GpuContext, others: Sequence[GpuContext] = ()) -> None:
        """`others` are those of the other GPUs of a plan of several devices."""
        self._context = context
        cupy = context.cupy
        self._flush = _flush_buffer(context)
        self._others = [(other, _flush_buffer(other), other.event()) for other in others]
        self._hold = cupy.RawKernel(_HOLD, "hold")
        self._start, self._end = cupy.cuda.Event(), cupy.cuda.Event()

    def cold_ms(self, enqueue: Enqueue) -> float:
        """Time of one run in milliseconds, with none of its data in L2."""
        stream = self._context.stream
        hold_ns = SHORTEST_HOLD_NS
        while True:
            for other, flush, flushed in self._others:
                other.fill(flush, 0)
                flushed.record(other.stream)
                stream.wait_event(flushed)
            self._context.fill(self._flush, 0)
            self._hold((1,), (1,), (_uint64(hold_ns),))
            held_from = time.perf_counter_ns()
            self._start.record(stream)
            enqueue()
            self._end.record(stream)
            enqueued_ns = time.perf_counter_ns() - held_from
            self._end.synchronize()
            if enqueued_ns < hold_ns:
                return float(self._context.cupy.cuda.get_elapsed_time(self._start, self._end))
            # The host took longer than the stream was blocked, so launch gaps may be included. Repeat with a longer
            # block.
            hold_ns = 2 * enqueued_ns

    def sustained_ms(self, enqueue: Enqueue, seconds: float) -> float:
        """Mean time of back-to-back runs in milliseconds, repeated for at least so many seconds, with warm caches."""
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


def _flush_buffer(context: GpuContext) -> Any:
    return context.allocate(Buffer("flush", (FLUSH_L2_SIZES * max(1, context.l2_bytes),), "uint8"))


def _uint64(value: int) -> Any:
    import numpy as np

    return np.uint64(value)


SAMPLED_EVERY_S = 0.02
_HELD_DOWN = {
    "SwPowerCap": "power",
    "HwPowerBrakeSlowdown": "power brake",
    "SwThermalSlowdown": "temperature",
    "HwThermalSlowdown": "temperature",
    "HwSlowdown": "hardware slowdown",
}
"""NVML's throttle reasons and their names here. Idling and application clocks are not listed: they are no slowdown."""


@dataclass
class Clocks:
    """Clock readings taken during a measurement."""

    sm_mhz: list[int] = field(default_factory=list)
    held_down_by: set[str] = field(default_factory=set)

    @property
    def median_mhz(self) -> float | None:
        """Median clock in MHz; None without readings."""
        return statistics.median(self.sm_mhz) if self.sm_mhz else None


class ClockReader:
    """Reads one GPU's clocks, by PCI address. Without NVML all readings are unknown."""

    def __init__(self, pci_bus_id: str) -> None:
        self.driver: str | None = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._device: Any = pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id.encode())
            self._nvml: Any = pynvml
            self.driver = pynvml.nvmlSystemGetDriverVersion()
        except Exception:  # not installed, no library, no permission: clocks are unknown
            self._nvml = None

    @contextmanager
    def reading(self) -> Iterator[Clocks]:
        """A context manager that reads clocks in a thread of its own until the block ends."""
        clocks, done = Clocks(), threading.Event()
        if self._nvml is None:
            yield clocks
            return
        thread = threading.Thread(target=self._read, args=(clocks, done), daemon=True)
        thread.start()
        try:
            yield clocks
        finally:
            done.set()
            thread.join()

    def _read(self, clocks: Clocks, done: threading.Event) -> None:
        nvml = self._nvml
        while not done.wait(SAMPLED_EVERY_S):
            try:
                clocks.sm_mhz.append(nvml.nvmlDeviceGetClockInfo(self._device, nvml.NVML_CLOCK_SM))
                reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._device)
            except nvml.NVMLError:
                return
            for name, reason in _HELD_DOWN.items():
                if reasons & getattr(nvml, f"nvmlClocksThrottleReason{name}", 0):
                    clocks.held_down_by.add(reason)
