"""Orders the launches and copies of a plan on the streams of its GPUs. The host waits for nothing in between.

Launches of a device are on its GPU's stream. Copies are on streams of their own, one for each pair of devices, so that
they run beside launches. Events order them as `PeerCopy` defines: a copy waits for what both of its devices have
enqueued before launch `start`, and both wait for the copy before launch `wait`.

All of it lies between two points of the first GPU's stream: the others begin behind an event of it, and it waits for
their ends. So a stopwatch on this stream measures from a common start to the end of the last device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.compilers.toolchain import Call
from harness.gpu.context import GpuContext
from harness.gpu.plan_devices import PlanDevices
from harness.model.peer_copy import PeerCopy
from harness.model.plan import Buffer, Launch, Plan


@dataclass(frozen=True)
class _Step:
    """Something that the host enqueues."""

    enqueue: Call
    is_launch: bool


class PlanRun:
    """A plan whose launches and copies are bound to arrays.

    `buffers` are the plan's, by name, and `arrays` what launches name. Raises what `GpuContext.bind` does.
    """

    def __init__(
        self, devices: PlanDevices, plan: Plan, buffers: Mapping[str, Buffer], arrays: Mapping[str, Any]
    ) -> None:
        self._devices, self._buffers, self._arrays = devices, buffers, arrays
        self._names = [launch.kernel_name for launch in plan.launches]
        self._has_copies = bool(plan.copies)
        self._others = [(context, context.event()) for context in devices.contexts[1:]]
        self._began = devices.first.event() if self._others else None
        self._streams: dict[tuple[int, int], Any] = {}
        self._steps: list[_Step] = []
        in_flight: list[tuple[PeerCopy, Any]] = []
        for number in range(len(plan.launches) + 1):
            for copy, done in in_flight:
                if copy.wait == number:
                    self._wait_for(copy, done)
            in_flight = [each for each in in_flight if each[0].wait > number]
            in_flight += self._begin([copy for copy in plan.copies if copy.start == number])
            if number < len(plan.launches):
                self._launch(plan.launches[number])

    @property
    def kernels(self) -> str:
        """Names of the kernels, for messages."""
        return ", ".join(dict.fromkeys(self._names))

    def enqueue(self, launches: bool = True, copies: bool = True) -> None:
        """Enqueue all work, behind what is on the first GPU's stream and before what follows there.

        Without `launches` or `copies` it enqueues only the others, to measure them; the answer is wrong then.
        """
        first = self._devices.first.stream
        if self._began is not None:
            self._began.record(first)
        for context, _ in self._others:
            context.stream.wait_event(self._began)
        for step in self._steps:
            if launches if step.is_launch else copies:
                step.enqueue()
        for context, ended in self._others:
            ended.record(context.stream)
            first.wait_event(ended)

    def run(self) -> None:
        """Run once and wait. A fault names its kernel; with copies or several GPUs, all kernels of the plan."""
        first = self._devices.first
        if self._has_copies or self._others:
            with first.faults_named(self.kernels):
                self.enqueue()
                self._devices.synchronize()
            return
        for name, step in zip(self._names, self._steps, strict=True):
            with first.faults_named(name):
                step.enqueue()
                # CUDA reports a fault at some later call; waiting here attributes it to this launch.
                first.stream.synchronize()

    def _launch(self, launch: Launch) -> None:
        context = self._devices.on(launch.device)
        call = context.bind(launch, self._arrays)
        # The only GPU is current anyway.
        self._steps.append(_Step(_made_on(context, call) if self._others else call, is_launch=True))

    def _begin(self, copies: Sequence[PeerCopy]) -> list[tuple[PeerCopy, Any]]:
        """Begin copies behind all that their devices have enqueued so far. Returns them with events of their ends."""
        reached: dict[GpuContext, Any] = {}
        begun = []
        for copy in copies:
            for context in self._ends(copy):
                if context not in reached:
                    reached[context] = context.event()
                    self._order(reached[context].record, context.stream)
        for copy in copies:
            source, destination = self._devices_of(copy)
            here, there = self._devices.on(source), self._devices.on(destination)
            if (source, destination) not in self._streams:
                self._streams[source, destination] = here.new_stream()
            stream, done = self._streams[source, destination], here.event()
            for context in self._ends(copy):
                self._order(stream.wait_event, reached[context])
            arrays = self._arrays[copy.source], self._arrays[copy.destination]
            self._order(here.copy_to, there, *arrays, copy.size_bytes, stream)
            self._order(done.record, stream)
            begun.append((copy, done))
        return begun

    def _wait_for(self, copy: PeerCopy, done: Any) -> None:
        for context in self._ends(copy):
            self._order(context.stream.wait_event, done)

    def _order(self, enqueue: Any, *args: Any) -> None:
        self._steps.append(_Step(lambda: enqueue(*args), is_launch=False))

    def _devices_of(self, copy: PeerCopy) -> tuple[int, int]:
        return self._buffers[copy.source].device, self._buffers[copy.destination].device

    def _ends(self, copy: PeerCopy) -> list[GpuContext]:
        """The contexts of its devices, which may be one."""
        return list(dict.fromkeys(map(self._devices.on, self._devices_of(copy))))


def _made_on(context: GpuContext, call: Call) -> Call:
    """A call that is made while its GPU and its stream are current."""

    def made() -> None:
        with context.current():
            call()

    return made
