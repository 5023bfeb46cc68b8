"""Defines copies between the devices of a plan, and checks that no device uses another's memory without one.

Launches of one device run in their order. Launches of different devices are ordered only by copies. The emulator
reports a launch that meets a copy in flight, which a GPU does not notice. So the result of a plan does not depend on
how fast a device is, or when a copy happens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.model.problem import INPUT
from harness.support.errors import PlanError

if TYPE_CHECKING:
    from harness.model.plan import Buffer, Plan, View
    from harness.model.problem import BaseProblem


@dataclass(frozen=True)
class PeerCopy:
    """An asynchronous copy of the first bytes of a buffer to a buffer of another device (`cudaMemcpyPeerAsync`).

    It is in flight during the launches `start` to `wait` - 1 of the plan. Kernels may read the source meanwhile. Raises
    `PlanError` if a field is invalid.
    """

    source: str
    """Name of the buffer that is read."""
    destination: str
    """Name of the buffer that is written."""
    size_bytes: int
    """Bytes that are copied, from the beginning of each buffer."""
    start: int
    """Index of the launch before which it starts: after all launches of both devices with a smaller index."""
    wait: int
    """Index of the launch before which both devices wait for it; the number of launches for the end of the plan."""

    def __post_init__(self) -> None:
        for name in ("source", "destination"):
            if not isinstance(getattr(self, name), str):
                raise PlanError(f"{self}: {name} is {getattr(self, name)!r}; it has to be the name of a buffer")
        for name in ("size_bytes", "start", "wait"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise PlanError(f"{self}: {name} is {value!r}; it has to be a whole number of at least 0")
        if self.wait <= self.start:
            raise PlanError(
                f"{self}: it is waited for before launch {self.wait}, and starts before launch {self.start}"
            )

    def __str__(self) -> str:
        return f"copy of {self.source} to {self.destination}"

    def flies_with(self, other: PeerCopy) -> bool:
        """Whether both are in flight at the same time."""
        return self.start < other.wait and other.start < self.wait


def held_bytes(buffers: Iterable[Buffer], devices: int) -> tuple[int, ...]:
    """Return the bytes of the buffers of each device."""
    held = [0] * devices
    for buffer in buffers:
        held[buffer.device] += buffer.size_bytes
    return tuple(held)


def require_devices(plan: Plan, buffers: Mapping[str, Buffer], views: Mapping[str, View], problem: BaseProblem) -> None:
    """Raise `PlanError` if a launch uses another device's memory, a copy is invalid, or a device holds too much.

    `buffers` and `views` are the plan's, by name.
    """
    if problem.devices == 1 and not plan.copies and not any(buffer.device for buffer in buffers.values()):
        if any(launch.device for launch in plan.launches):
            raise PlanError("the plan has a launch on another device than 0; the problem has one device")
        return
    numbered = [(f"buffer {name!r}", buffer.device) for name, buffer in buffers.items()]
    numbered += [(f"kernel {launch.kernel_name}", launch.device) for launch in plan.launches]
    for what, device in numbered:
        if isinstance(device, bool) or not isinstance(device, int) or not 0 <= device < problem.devices:
            raise PlanError(f"{what} is on device {device!r}; the problem has {problem.devices}, counted from 0")
    used = [_buffers_of(launch.args, views) for launch in plan.launches]
    for launch, names in zip(plan.launches, used):
        for name in names:
            if buffers[name].device != launch.device:
                raise PlanError(
                    f"kernel {launch.kernel_name} runs on device {launch.device} and is given buffer {name!r}, which "
                    f"is on device {buffers[name].device}; copy it first (Plan.copies)"
                )
    inputs = {tensor.buffer for tensor in problem.with_role(INPUT)}
    for copy in plan.copies:
        _require_copy(copy, buffers, len(plan.launches))
        if copy.destination in inputs:
            raise PlanError(f"{copy}: {copy.destination} is an input, which may only be read")
    _require_memory(plan, buffers, problem)


def _buffers_of(args: Iterable[Any], views: Mapping[str, View]) -> set[str]:
    """Return the names of the buffers among the arguments of a launch."""
    names: set[str] = set()
    for argument in args:
        if isinstance(argument, tuple):
            names |= _buffers_of(argument, views)
        else:
            name = argument if isinstance(argument, str) else getattr(argument, "buffer", None)
            names |= {views[name].buffer} if isinstance(name, str) and name in views else set()
    return names


def _require_copy(copy: PeerCopy, buffers: Mapping[str, Buffer], launches: int) -> None:
    for name in (copy.source, copy.destination):
        if name not in buffers:
            raise PlanError(f"{copy}: the plan has no buffer {name!r}; it has {', '.join(buffers)}")
        if copy.size_bytes > buffers[name].size_bytes:
            raise PlanError(f"{copy}: it has {copy.size_bytes} bytes, and buffer {name!r} {buffers[name].size_bytes}")
    if buffers[copy.source].device == buffers[copy.destination].device:
        raise PlanError(f"{copy}: both are on device {buffers[copy.source].device}; a copy is between two devices")
    if copy.wait > launches:
        raise PlanError(f"{copy}: it is waited for before launch {copy.wait}; the plan has {launches} launches")


def _require_memory(plan: Plan, buffers: Mapping[str, Buffer], problem: BaseProblem) -> None:
    """Raise `PlanError` if a device receives or holds more than the problem allows."""
    landing = [buffers[name] for name in dict.fromkeys(copy.destination for copy in plan.copies)]
    for device, size_bytes in enumerate(held_bytes(landing, problem.devices)):
        most = problem.most_received_bytes
        if most is not None and size_bytes > most:
            names = ", ".join(buffer.name for buffer in landing if buffer.device == device)
            raise PlanError(
                f"device {device} has {size_bytes:,} bytes of buffers that other devices copy into ({names}); "
                f"at most {most:,} are allowed"
            )
    for device, size_bytes in enumerate(held_bytes(buffers.values(), problem.devices)):
        most = problem.most_device_bytes(device)
        if most is not None and size_bytes > most:
            raise PlanError(f"device {device} holds {size_bytes:,} bytes; at most {most:,} are allowed")
