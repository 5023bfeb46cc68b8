"""The sanitizer's findings of one launch in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial

from harness.emulator.abi import layout as machine
from harness.emulator.abi import sanitizer_layout as at
from harness.emulator.abi.tensor_memory_layout import LANE_SHIFT
from harness.emulator.codegen.instrumentation.watched import is_strong
from harness.emulator.codegen.kernel_facts import KernelFacts, Site
from harness.emulator.launch.configuration import Geometry
from harness.emulator.launch.memory.sanitizer_memory import Bytes, SanitizerMemory
from harness.emulator.launch.messages.race_words import (
    Access,
    LaunchedKernel,
    in_program_order,
    missing_barrier,
    sources,
)
from harness.emulator.launch.messages.shared_array_names import SharedArrays
from harness.model.finding import Finding, Place
from harness.ptx.opcodes import TEXTURE
from harness.ptx.types import TYPES

Extents = tuple[int, int, int]


class LaunchRecorder:
    """The sanitizer's memory during one launch, and the findings after it.

    `buffers` are names and bytes; `overlapped` is the recorder of the previous launch if this one may begin before that
    has ended. The other parameters are those of `SanitizerMemory`.
    """

    def __init__(
        self,
        facts: KernelFacts,
        kernel: str,
        geometry: Geometry,
        buffers: Sequence[tuple[str, Bytes]],
        written: Sequence[Bytes],
        variables: Sequence[tuple[Bytes, int | None]],
        overlapped: LaunchRecorder | None = None,
    ) -> None:
        self._facts, self._kernel = facts, kernel
        self._geometry = geometry
        self._buffers = [name for name, _ in buffers]
        arrays = [array for _, array in buffers]
        granules = _granule(facts.sites, "shared"), _granule(facts.sites, "global")
        element_bytes = [_element_bytes(site) for site in facts.sites]
        if overlapped is not None and overlapped.memory.begun_clusters + geometry.clusters > at.MOST_CLUSTERS:
            overlapped = None  # races with earlier launches are missed
        before = None if overlapped is None else overlapped.memory
        self.memory: SanitizerMemory = SanitizerMemory(
            facts, geometry, arrays, written, variables, granules, element_bytes, before
        )
        self._launched = LaunchedKernel(kernel, facts, geometry)
        earlier = () if overlapped is None else overlapped._launches
        self._launches: tuple[tuple[int, LaunchedKernel], ...] = (*earlier, (self.memory.first_cluster, self._launched))
        """This launch, after those that it may overlap, each with the number of its first cluster."""

    def findings(self) -> tuple[Finding, ...]:
        """Findings in order of occurrence; one per kind and pair of source lines.

        Of several races of two lines, one between threads of different warps is shown if there is one.
        """
        merged: dict[tuple[object, ...], Finding] = {}
        for row in self.memory.findings():
            finding = self._finding(*(int(word) for word in row))
            key = (finding.kind, finding.target, _line(finding.place), _line(finding.other))
            first = merged.setdefault(key, finding)
            if first is not finding:
                shown = finding if self._is_within_a_warp(first) and not self._is_within_a_warp(finding) else first
                merged[key] = replace(shown, count=first.count + finding.count)
        return tuple(merged.values())

    def _is_within_a_warp(self, finding: Finding) -> bool:
        """Whether both threads of a race belong to one warp."""
        if finding.place is None or finding.other is None or finding.place.block != finding.other.block:
            return False
        return self._launched.warp(finding.place) == self._launched.warp(finding.other)

    # Words ----------------------------------------------------------------------------------------------------------

    def _finding(
        self,
        kind: int,
        site: int,
        before: int,
        count: int,
        time: int,
        thread: int,
        earlier: int,
        other: int,
        address: int,
        size: int,
    ) -> Finding:
        here = self._place(site, time, thread)
        where = f"kernel {self._kernel}, {self._at(site, here)}"
        made = partial(Finding, kind=at.KINDS[kind], kernel=self._kernel, place=here, count=count)
        if kind in (at.UNDEFINED_SHUFFLE, at.MASKS_DIFFER):
            return made(message=f"{where}: {self._of_lanes(kind, site, other % machine.LANES, address, size)}")
        if kind == at.UNDEFINED_REGISTER:
            form = self._facts.sites[site].form
            return made(message=f"{where}: '{form}' has {_ROLES[address]} that was never written")
        if kind in _OF_REGISTERS:
            return self._of_registers(kind, site, here, before, self._place(before, earlier, other), count)
        target, offset = self._target(address, here)
        what = self._what(site, size)
        there: Place | None = None
        if kind == at.UNINITIALISED:
            read = self._bytes_at(address, size, target, offset)
            message = f"{where}: {self._verb(site)} of {read}, to which nothing has been written"
        elif kind == at.OUTSIDE_ITS_ARRAY:
            message = f"{where}: {self._outside_its_array(what, address, before, target, offset)}"
        elif kind == at.INPUT_WRITTEN:
            message = f"{where}: {what} at byte offset {offset:,} of {target}, which is an input and may only be read"
        elif kind == at.NOT_STARTED:
            message = (
                f"{where}: {what} at byte offset {offset:,} of {target}, which may not have started yet; "
                "all blocks of the cluster have to meet first (barrier.cluster)"
            )
        elif kind == at.EARLY_EXIT:
            there = self._place(before - 1, earlier, other) if before else None
            ended = f" at {self._at(before - 1, there)}" if there is not None else ""
            message = (
                f"{where}: {what} at byte offset {offset:,} of {target}, which may have ended by then{ended}; "
                "its threads have to stay until no other block needs their shared memory (barrier.cluster)"
            )
        elif kind == at.NOT_AWAITED:
            message = (
                f"{where}: {what} at byte offset {offset:,} of {target} was under way when the block ended; its thread "
                "has to commit it and wait for it (cp.async.bulk.commit_group, then wait_group or wait_group.read)"
            )
        elif kind == at.MISSING_MAP_FENCE:
            there = self._place(before, earlier, other)
            message = (
                f"{where}: the copy uses the tensor map at byte offset {offset:,} of {target}, and may not see what "
                f"'{self._facts.sites[before].opcode}' wrote at {self._at(before, there)}; a "
                "fence.proxy.tensormap::generic.acquire of the map is missing between the two"
            )
        elif kind == at.MISSING_PROXY_FENCE:
            there = self._place(before, earlier, other)
            message = (
                f"{where}: {what} at byte offset {offset:,} of {target} by the asynchronous proxy, which has not seen "
                f"the {self._verb(before)} at {self._at(before, there)}; a fence.proxy.async is missing between the "
                "two, best in the threads that wrote, before they meet the others"
            )
        else:
            bytes_there = self._bytes_at(address, size, target, offset)
            if before < 0:
                access = self._launched.access(site, here)
                return self._race_of_launches(
                    at.KINDS[kind], access, -1 - before, earlier, other, bytes_there, target, offset, count
                )
            there = self._place(before, earlier % at.PENDING, other)
            accesses = self._launched.access(site, here), self._launched.access(before, there)
            return self._race(at.KINDS[kind], *accesses, bytes_there, target, offset, count, earlier >= at.PENDING)
        return made(message=message, other=there, target=target, offset=offset)

    def _outside_its_array(self, what: str, address: int, array: int, target: str, offset: int) -> str:
        """Describe an access at `offset` of `target` whose address was computed from that of another array."""
        variable = self._facts.shared_variables[array]
        within = (address & machine.OFFSET_MASK) % self.memory.shared_pitch - variable.offset
        name = self._shared_arrays.name(variable)
        size = f"which has {variable.size_bytes:,} bytes" if variable.size_bytes else "before its beginning"
        there = "between arrays" if target == "shared memory" else f"at byte offset {offset:,} of {target}"
        return f"{what} at byte offset {within:,} of {name}, {size}; that is {there}"

    def _of_registers(self, kind: int, site: int, here: Place, before: int, there: Place, count: int) -> Finding:
        """A finding on a register of the product at `there` that is accessed at `here`, or vice versa."""
        sites = self._facts.sites
        is_first = site == before
        earlier = f"'{sites[before].form}' at {self._at(before, there)}"
        words = _FIRST if is_first else _OF_REGISTERS[kind].format(earlier)
        return Finding(
            kind=at.KINDS[kind],
            message=f"kernel {self._kernel}, {self._at(site, here)}: '{sites[site].form}' {words}",
            kernel=self._kernel,
            place=here,
            other=None if is_first else there,
            count=count,
        )

    def _of_lanes(self, kind: int, site: int, other: int, mask: int, second: int) -> str:
        """Describe undefined behaviour between lanes of one warp.

        `second` is the source lane, or the other lane's mask.
        """
        form = self._facts.sites[site].form
        if kind == at.MASKS_DIFFER:
            return (
                f"'{form}' has mask {mask:#010x} here, and {second:#010x} in lane {other}, which that names; "
                "lanes that name each other have to have the same mask"
            )
        why = "which has returned or is none of the block's" if mask >> second & 1 else "which the mask does not name"
        return f"'{form}' with mask {mask:#010x} reads lane {second}, {why}; what comes is undefined"

    def _race(
        self,
        kind: str,
        here: Access,
        there: Access,
        what: str,
        target: str,
        offset: int,
        count: int,
        is_in_flight: bool,
    ) -> Finding:
        """The race of two accesses, of which `there` came first in the run; `what` names the bytes."""
        within = here.place.block == there.place.block
        ordered_by_scopes = self._is_strong(here.number) and self._is_strong(there.number)
        # Other than those of a copy by its own thread, asynchronous accesses are not ordered by barriers alone.
        others = {here.site.opcode, there.site.opcode} & WAITS.keys() - {"cp"}
        paths = None if others or not within or ordered_by_scopes else self._facts.barrier_paths
        observed = kind
        if here.place.thread != there.place.thread:
            kind, here, there = in_program_order(kind, here, there, paths, is_in_flight)
        # A copy that is in flight because it comes an iteration too early needs no other wait.
        needs_barrier = within and not ordered_by_scopes and (not is_in_flight or kind != observed)
        if needs_barrier:
            words = missing_barrier(kind, here, there, what, self._threads(here.place, there.place), paths)
        else:
            lines = here.line(there), there.line(here)
            words = f"{here.verb} of {what} at {lines[0]} races with the {there.verb} at {lines[1]}; "
            if is_in_flight:
                words += f"that is still in flight: {WAITS[there.site.opcode]}"
            elif ordered_by_scopes:
                words += (
                    "nothing orders the two, and both are strong, but the scope of one does not include the other's "
                    "thread, or their elements differ in size"
                )
            elif self._cluster_of(here.place) == self._cluster_of(there.place):
                words += "blocks of a cluster are ordered by its barrier (barrier.cluster), mbarriers and atomics"
            else:
                words += "blocks of one launch are ordered only by atomics with fences, or by a launch of their own"
        words += sources(here, there, with_threads=not needs_barrier)
        return self._of_two(kind, here, there, words, target, offset, count)

    def _race_of_launches(
        self,
        kind: str,
        here: Access,
        before: int,
        earlier: int,
        other: int,
        what: str,
        target: str,
        offset: int,
        count: int,
    ) -> Finding:
        """The race with an access by thread `other` at site `before` of an earlier launch, at the time `earlier`."""
        number = self.memory.number_at(earlier)
        launch = self._launch_of(number)
        there = launch.access(before, launch.place(before, self.memory.cluster_at(earlier), other))
        words = (
            f"{here.verb} of {what} at {here.line(there)} races with the {there.verb} at {there.line(here)} of kernel "
            f"{launch.name}, an earlier launch that may not have ended (programmatic dependent launch); "
        )
        if number < self.memory.first_ended:
            between = self._launch_of(self.memory.first_ended)
            words += f"a griddepcontrol.wait waits only for the launches since {between.name}, which has no such wait"
        else:
            words += "a griddepcontrol.wait has to come first"
        words += sources(here, there, with_threads=True)
        return self._of_two(kind, here, there, words, target, offset, count)

    def _of_two(
        self, kind: str, here: Access, there: Access, words: str, target: str, offset: int, count: int
    ) -> Finding:
        """The finding on two accesses to the same bytes, described in `words`."""
        return Finding(
            kind=kind,
            message=f"kernel {self._kernel}: {words}",
            kernel=self._kernel,
            place=here.place,
            other=there.place,
            target=target,
            offset=offset,
            count=count,
        )

    def _launch_of(self, number: int) -> LaunchedKernel:
        """The launch to which the cluster with this number belongs."""
        return [launch for first, launch in self._launches if first <= number][-1]

    def _threads(self, first: Place, second: Place) -> str:
        """Two threads of one block."""
        is_flat = self._geometry.block[1:] == (1, 1)
        names = [str(place.thread[0] if is_flat else place.thread) for place in (first, second)]
        threads = f"threads {' and '.join(names)}"
        return threads if self._geometry.grid == (1, 1, 1) else f"block {first.block}, {threads}"

    def _is_strong(self, site: int) -> bool:
        found = self._facts.sites[site]
        return found.memory is not None and is_strong(found.memory, set(found.form.split(".")))

    def _cluster_of(self, place: Place) -> int:
        x, y, z = place.block
        wide, high, _ = self._geometry.grid
        return self._geometry.cluster_of(x + wide * (y + high * z))

    def _verb(self, site: int) -> str:
        memory = self._facts.sites[site].memory
        assert memory is not None
        return memory.verb

    def _what(self, site: int, size: int) -> str:
        return f"{self._verb(site)} of {size:,} byte{'s' if size > 1 else ''}"

    def _at(self, site: int, place: Place) -> str:
        return f"{self._facts.sites[site].where()}, block {place.block}, thread {place.thread}"

    def _place(self, site: int, time: int, thread: int) -> Place:
        return self._launched.place(site, self.memory.cluster_at(time), thread)

    def _bytes_at(self, address: int, size: int, target: str, offset: int) -> str:
        """The bytes of an access: a cell of tensor memory, or an element of an array, or a number of bytes."""
        how_many = f"{size:,} byte{'s' if size > 1 else ''}"
        window, place = address >> machine.WINDOW_BITS, address & machine.OFFSET_MASK
        if window == machine.TENSOR_WINDOW:
            return f"{how_many} at lane {offset >> LANE_SHIFT & 0xFFFF}, column {offset & 0xFFFF} of {target}"
        element = None
        if window == machine.SHARED_WINDOW and place < self.memory.shared_pitch:
            element = self._shared_arrays.element(place)
        return element or f"{how_many} at byte offset {offset:,} of {target}"

    @cached_property
    def _shared_arrays(self) -> SharedArrays:
        return SharedArrays.of(self._facts.shared_variables, self._facts.sites)

    def _neighbour(self, here: Place, rank: int) -> Extents:
        """Coordinates of the block with this rank in the cluster of `here`."""
        return machine.coordinates(self._geometry.block_of(self._cluster_of(here), rank), self._geometry.grid)

    def _target(self, address: int, here: Place) -> tuple[str, int]:
        """The object at an address that a thread at `here` accesses, and the offset in it."""
        window, offset = address >> machine.WINDOW_BITS, address & machine.OFFSET_MASK
        if window == machine.SHARED_WINDOW:
            rank, offset = divmod(offset, self.memory.shared_pitch)
            name, offset = self._shared_arrays.target(offset)
            owner = self._neighbour(here, rank)
            return name if owner == here.block else f"{name} of block {owner}", offset
        if window == machine.TENSOR_WINDOW:
            owner = self._neighbour(here, offset >> 32)
            return "tensor memory" if owner == here.block else f"tensor memory of block {owner}", offset & 0xFFFFFFFF
        if window == machine.LOCAL_WINDOW:
            return "local memory", offset
        offset -= machine.BUFFER_START
        if window >= machine.FIRST_BUFFER_WINDOW:
            return f"buffer {self._buffers[window - machine.FIRST_BUFFER_WINDOW]}", offset
        return f"variable {self._facts.variables[window - machine.FIRST_VARIABLE_WINDOW].name}", offset


_OF_REGISTERS = {
    at.EARLY_ACCUMULATOR: "reads an accumulator of the {0}, which is under way; wait for it first (wgmma.wait_group)",
    at.EARLY_REGISTER: "writes a register of the {0}, which is under way; wait for it first (wgmma.wait_group)",
    at.MISSING_WGMMA_FENCE: "takes a register that the {0} touched, and no wgmma.fence lies between the two; put one "
    "(wgmma.fence.sync.aligned) before the first product of its group",
}
"""Descriptions of an access to a register, without the other instruction."""
_ROLES = {
    at.ROLE_ADDRESS: "an address from a register",
    at.ROLE_VALUE: "a value from a register",
    at.ROLE_PREDICATE: "a condition from a register",
    at.ROLE_PARAMETER: "a parameter of a call",
}
_FIRST = "is the first product of its warp, and no wgmma.fence.sync.aligned lies before it"


def _line(place: Place | None) -> tuple[str, int] | None:
    return None if place is None else (place.file, place.line)


WAITS = {
    "cp": "its thread has to wait for it first (cp.async.wait_group)",
    **dict.fromkeys(
        ("cp.bulk_load", "cp.bulk_between", "st.async", "red.async", "clusterlaunchcontrol.try_cancel"),
        "whoever uses it has to wait first at its mbarrier, for the phase that counts it",
    ),
    **dict.fromkeys(
        ("cp.bulk_store", "cp.bulk_reduction"), "its thread has to wait for it first (cp.async.bulk.wait_group)"
    ),
    "wgmma.mma_async": "its warpgroup has to wait for it first (wgmma.wait_group)",
    "tcgen05.ld": "its warp has to wait for it first (tcgen05.wait::ld)",
    "tcgen05.st": "its warp has to wait for it first (tcgen05.wait::st)",
    **dict.fromkeys(
        ("tcgen05.mma", "tcgen05.cp", "tcgen05.shift"),
        "a tcgen05.commit of its thread has to come first, and a wait for that at its mbarrier",
    ),
}
"""What has to precede an access to data in flight, by opcode."""


def _element_bytes(site: Site) -> int:
    """Bytes of an element that the instruction accesses; 0 for packed elements, which are accessed one by one."""
    types = [TYPES[word] for word in site.form.split(".") if word in TYPES]
    return 0 if site.memory is None or not types or types[-1].name.endswith("x2") else types[-1].size_bytes


def _granule(sites: Sequence[Site], space: str) -> int:
    """Bytes of the narrowest element by which this space is accessed, which is the granularity of shadow cells."""
    widths = [16]
    for site in sites:
        if site.memory is None:
            continue
        words = site.form.split(".")
        if site.memory is TEXTURE:
            widths.append(1)  # its texels may be bytes
            continue
        if site.opcode in ("st.async", "red.async"):
            widths += [TYPES[word].size_bytes for word in words if word in TYPES]
            continue
        if site.memory.asynchronous:
            widths.append(4 if "ca" in words else 16)
            continue
        named = {w.partition("::")[0] for w in words} & {"global", "shared", "local", "const", "param"}
        if named in (set(), {space}):
            widths += [TYPES[word].size_bytes for word in words if word in TYPES]
    return min(widths)
