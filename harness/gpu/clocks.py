"""Reads the GPU's clock during a measurement, and the reason for a lowered clock, with NVML (nvidia-ml-py)."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

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
