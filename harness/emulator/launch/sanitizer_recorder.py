"""The sanitizer's findings of one launch in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from harness.emulator.abi import layout as machine
from harness.emulator.abi import sanitizer_layout as at
from harness.emulator.abi.tensor_memory_layout import LANE_SHIFT
from harness.emulator.codegen.instrumentation.watched import is_strong
from harness.emulator.codegen.kernel_facts import KernelFacts, SharedVariable, Site
from harness.emulator.launch.configuration import Geometry
from harness.emulator.launch.memory.sanitizer_memory import SanitizerMemory
from harness.model.finding import Finding, Place
from harness.ptx.instructions import source_name
from harness.ptx.opcodes import TEXTURE
from harness.ptx.types import TYPES

Extents = tuple[int, int, int]


class LaunchRecorder:
    """The sanitizer's memory during one launch, and the findings after it.

    `buffers` are names and sizes; the other parameters are those of `SanitizerMemory`.
    """

    def __init__(
        self,
        facts: KernelFacts,
        kernel: str,
        geometry: Geometry,
        buffers: Sequence[tuple[str, int]],
        written: Sequence[npt.NDArray[np.uint8]],
        variables: Sequence[int | None],
    ) -> None:
        self._facts, self._kernel = facts, kernel
        self._geometry = geometry
        self._buffers = buffers
        sizes = [size for _, size in buffers]
        granules = _granule(facts.sites, "shared"), _granule(facts.sites, "global")
        element_bytes = [_element_bytes(site) for site in facts.sites]
        self.memory = SanitizerMemory(facts, geometry, sizes, written, variables, granules, element_bytes)

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
        x, y, _ = self._geometry.block
        first, second = (
            (place.thread[0] + x * (place.thread[1] + y * place.thread[2])) // machine.LANES
            for place in (finding.place, finding.other)
        )
        return first == second

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
        if kind in (at.UNDEFINED_SHUFFLE, at.MASKS_DIFFER):
            words = self._of_lanes(kind, site, other % machine.LANES, address, size)
            message = f"kernel {self._kernel}, {self._at(site, here)}: {words}"
            return Finding(kind=at.KINDS[kind], message=message, kernel=self._kernel, place=here, count=count)
        if kind == at.UNDEFINED_REGISTER:
            words = f"'{self._facts.sites[site].form}' has {_ROLES[address]} that was never written"
            message = f"kernel {self._kernel}, {self._at(site, here)}: {words}"
            return Finding(kind=at.KINDS[kind], message=message, kernel=self._kernel, place=here, count=count)
        if kind in _OF_REGISTERS:
            return self._of_registers(kind, site, here, before, self._place(before, earlier, other), count)
        target, offset = self._target(address, here)
        what = self._what(site, size)
        where = f"kernel {self._kernel}, {self._at(site, here)}"
        there: Place | None = None
        if kind == at.UNINITIALISED:
            message = f"{where}: {what} at {self._position(address, target, offset)}, to which nothing has been written"
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
            there = self._place(before, earlier % at.PENDING, other)
            if earlier >= at.PENDING:
                remedy = f"that is still in flight: {WAITS[self._facts.sites[before].opcode]}"
            elif self._is_strong(site) and self._is_strong(before):
                remedy = (
                    "nothing orders the two, and both are strong, but the scope of one does not include the other's "
                    "thread, or their elements differ in size"
                )
            else:
                remedy = self._remedy(here, self._verb(site), there, self._verb(before))
            message = (
                f"{where}: {what} at {self._position(address, target, offset)} races with the {self._verb(before)} at "
                f"{self._at(before, there)}; {remedy}"
            )
        return Finding(
            kind=at.KINDS[kind],
            message=message,
            kernel=self._kernel,
            place=here,
            other=there,
            target=target,
            offset=offset,
            count=count,
        )

    def _outside_its_array(self, what: str, address: int, array: int, target: str, offset: int) -> str:
        """Describe an access at `offset` of `target` whose address was computed from that of another array."""
        variable = self._facts.shared_variables[array]
        within = (address & machine.OFFSET_MASK) % self.memory.shared_pitch - variable.offset
        name, _ = _shared_target((variable,), variable.offset)
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

    def _remedy(self, here: Place, verb: str, there: Place, earlier_verb: str) -> str:
        """What would order two accesses, of which that at `there` came first in the run."""
        if here.block == there.block:
            return _missing_barrier(here, verb, there, earlier_verb)
        if self._cluster_of(here) == self._cluster_of(there):
            return "blocks of a cluster are ordered by its barrier (barrier.cluster), mbarriers and atomics"
        return "blocks of one launch are ordered only by atomics with fences, or by a launch of their own"

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
        cluster = self.memory.cluster_at(time)
        rank, own = divmod(thread, machine.LANES * self._geometry.warp_pitch)
        block = self._geometry.block_of(cluster, rank)
        file, line = self._facts.sites[site].file_and_line
        grid, threads = self._geometry.grid, self._geometry.block
        return Place(file, line, machine.coordinates(block, grid), machine.coordinates(own, threads))

    @staticmethod
    def _position(address: int, target: str, offset: int) -> str:
        """Describe a position in an object: a cell of tensor memory, otherwise a byte."""
        if address >> machine.WINDOW_BITS == machine.TENSOR_WINDOW:
            return f"lane {offset >> LANE_SHIFT & 0xFFFF}, column {offset & 0xFFFF} of {target}"
        return f"byte offset {offset:,} of {target}"

    def _neighbour(self, here: Place, rank: int) -> Extents:
        """Coordinates of the block with this rank in the cluster of `here`."""
        return machine.coordinates(self._geometry.block_of(self._cluster_of(here), rank), self._geometry.grid)

    def _target(self, address: int, here: Place) -> tuple[str, int]:
        """The object at an address that a thread at `here` accesses, and the offset in it."""
        window, offset = address >> machine.WINDOW_BITS, address & machine.OFFSET_MASK
        if window == machine.SHARED_WINDOW:
            rank, offset = divmod(offset, self.memory.shared_pitch)
            name, offset = _shared_target(self._facts.shared_variables, offset)
            owner = self._neighbour(here, rank)
            return name if owner == here.block else f"{name} of block {owner}", offset
        if window == machine.TENSOR_WINDOW:
            owner = self._neighbour(here, offset >> 32)
            return "tensor memory" if owner == here.block else f"tensor memory of block {owner}", offset & 0xFFFFFFFF
        if window == machine.LOCAL_WINDOW:
            return "local memory", offset
        offset -= machine.BUFFER_START
        if window >= machine.FIRST_BUFFER_WINDOW:
            return f"buffer {self._buffers[window - machine.FIRST_BUFFER_WINDOW][0]}", offset
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


def _shared_target(variables: Sequence[SharedVariable], offset: int) -> tuple[str, int]:
    """The variable, by its name in the source, and the offset in it."""
    for variable in reversed(variables):
        if variable.offset <= offset and (not variable.size_bytes or offset < variable.offset + variable.size_bytes):
            return f"shared memory {source_name(variable.name)}", offset - variable.offset
    return "shared memory", offset


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


def _missing_barrier(here: Place, verb: str, there: Place, earlier_verb: str) -> str:
    """What is missing between two accesses of one block, of which that at `there` came first in the run."""
    first, second = (
        (f"the other {verb}", "this one") if verb == earlier_verb else (f"the {earlier_verb}", f"the {verb}")
    )
    text = f"{first} came first, and no barrier, __syncwarp or atomic orders {second} after it"
    if here.file == there.file and 0 < here.line < there.line:
        turn = "so it may be of a loop's next turn: then a barrier is missing at the end of the loop's body"
        text += f"; {second} stands above {first} in the source, {turn}"
    return text
