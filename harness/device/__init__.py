"""The emulated GPU for any program: memory, modules and launches, without problems, operations and plans."""

from harness.device.array import DeviceArray
from harness.device.device import Device
from harness.device.kernel import Kernel
from harness.device.module import Module
from harness.device.result import LaunchResult

__all__ = ["Device", "DeviceArray", "Kernel", "LaunchResult", "Module"]
