"""Properties of a kernel that a launch needs besides its native code; stored with that code on disk, as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from harness.emulator.codegen.barrier_paths import BarrierPaths
from harness.ptx.blocks import registers_of
from harness.ptx.instructions import Function, Instruction, Reg, SourceLine, names_in
from harness.ptx.opcodes import ATOMIC, BULK_REDUCTION, LOAD, OPCODES, MemoryAccess


@dataclass(frozen=True)
class Parameter:
    """One parameter of the entry."""

    name: str
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class ModuleVariable:
    """A `.global` or `.const` variable."""

    name: str
    size_bytes: int
    initial: bytes | None
    counted: bool
    """Whether accesses of this kernel to it count as global traffic. Constants have a cache of their own."""
    constant: bool
    """Whether it is `.const` and so may not be written."""


@dataclass(frozen=True)
class SharedVariable:
    """A `.shared` variable."""

    name: str
    offset: int
    size_bytes: int
    """Size; 0 for dynamic shared memory, whose size the launch determines."""


class Site(NamedTuple):
    """An instruction that generated code refers to by number, because it accesses memory or can fault."""

    opcode: str
    """The name of its row in `ptx.opcodes.OPCODES`."""
    form: str
    """Opcode and modifiers."""
    ptx_line: int
    source: SourceLine | None
    is_reduction: bool = False
    """Whether it is an atomic whose old value is unused, which `ptxas` turns into a reduction."""

    @classmethod
    def of(cls, instruction: Instruction, is_reduction: bool = False) -> Site:
        """The site of an instruction."""
        return cls(instruction.row_name, instruction.form, instruction.ptx_line, instruction.source, is_reduction)

    @property
    def memory(self) -> MemoryAccess | None:
        """Its memory access; None if it makes none."""
        return OPCODES[self.opcode].memory if self.opcode in OPCODES else None

    @property
    def file_and_line(self) -> tuple[str, int]:
        """Source file and line; empty and 0 if unknown."""
        return (self.source.file, self.source.line) if self.source else ("", 0)

    def where(self) -> str:
        """The PTX line and, if known, the source line, for messages."""
        at = f"PTX line {self.ptx_line}"
        return f"{self.source.file}:{self.source.line} ({at})" if self.source else at


def sites_of(instructions: Sequence[Instruction], function: Function) -> tuple[Site, ...]:
    """The sites of some instructions of a function."""
    read = frozenset[str]().union(*(registers_of(i)[0] for i in function.instructions()))
    atomics = (ATOMIC, BULK_REDUCTION)
    return tuple(Site.of(i, i.facts.memory in atomics and not registers_of(i)[1] & read) for i in instructions)


_WATCHES = {"volatile", "relaxed", "acquire", "mmio", "cv"}
"""Modifiers of loads that observe stores of other threads."""


def connects_blocks(instruction: Instruction) -> bool:
    """Whether blocks may communicate through the instruction: an atomic, or a load that observes global memory.

    Text is printed in the order of the blocks, and they share the heap.
    """
    if instruction.row_name in ("call.vprintf", "call.malloc", "call.free"):
        return True
    memory, words = instruction.facts.memory, instruction.modifiers
    if memory is BULK_REDUCTION:
        return True
    watches = memory is LOAD and not _WATCHES.isdisjoint(words)
    return (memory is ATOMIC or watches) and not any(w.startswith(("shared", "local", "param")) for w in words)


@dataclass(frozen=True)
class KernelFacts:
    """All properties of a kernel except its code."""

    parameters: tuple[Parameter, ...]
    shared_bytes: int
    """Static shared memory, after which dynamic shared memory begins."""
    local_bytes: int
    """Local memory per thread."""
    variables: tuple[ModuleVariable, ...]
    """Variables by number."""
    shared_variables: tuple[SharedVariable, ...]
    """Variables by offset."""
    register_bytes: int
    """Per warp."""
    clear_registers: bool
    """Whether some register may be read before it is written."""
    ordered: bool
    """Whether blocks have to run in order on one core, because they communicate by atomics or volatile loads."""
    prints: bool
    """Whether it calls `printf`."""
    copies: bool
    """Whether it has asynchronous copies, which need queues."""
    async_proxy: bool
    """Whether it has mbarriers, bulk copies or warpgroup products, which need memory for operations in flight."""
    most_threads: int | None
    """Threads that a block may have (`.maxntid`); None if the kernel does not say."""
    entry_registers: int | None
    """Maximum registers per thread at launch if `setmaxnreg` changes them; None if it does not."""
    grid_barrier: bool
    """Whether it reads the address of the barrier of `grid.sync()`, which only cooperative launches have."""
    clusters: ClusterFacts
    sites: tuple[Site, ...]
    blocks: tuple[Site | None, ...]
    """An instruction of each basic block, to locate a warp in messages."""
    barrier_paths: BarrierPaths | None = None
    """The paths between its sites, for messages of the sanitizer; None in a kernel that is not compiled for it."""

    @property
    def tensor_memory(self) -> bool:
        """Whether it has tensor memory: whether it has instructions of Blackwell's tensor cores."""
        return any(site.opcode.startswith("tcgen05.") for site in self.sites)

    @property
    def cancels(self) -> bool:
        """Whether it can cancel clusters that have not started (`clusterlaunchcontrol.try_cancel`)."""
        return any(site.opcode == "clusterlaunchcontrol.try_cancel" for site in self.sites)

    def to_json(self) -> bytes:
        """Serialize for the cache."""
        fields = asdict(replace(self, sites=(), blocks=()))
        for variable in fields["variables"]:
            if variable["initial"] is not None:
                variable["initial"] = variable["initial"].hex()
        # There are thousands of sites on few source lines.
        lines = dict.fromkeys(site.source for site in (*self.sites, *self.blocks) if site and site.source)
        numbers = {None: None} | {line: number for number, line in enumerate(lines)}
        fields["lines"] = [[line.file, line.line] for line in lines]
        for name, sites in (("sites", self.sites), ("blocks", self.blocks)):
            fields[name] = [site and [*site[:3], numbers[site.source], site.is_reduction] for site in sites]
        return json.dumps(fields).encode()

    @classmethod
    def from_json(cls, text: bytes) -> KernelFacts:
        """Deserialize."""
        fields = json.loads(text)
        fields["parameters"] = tuple(Parameter(**p) for p in fields["parameters"])
        fields["variables"] = tuple(
            ModuleVariable(**{**v, "initial": None if v["initial"] is None else bytes.fromhex(v["initial"])})
            for v in fields["variables"]
        )
        fields["shared_variables"] = tuple(SharedVariable(**v) for v in fields["shared_variables"])
        fields["clusters"] = ClusterFacts.from_fields(fields["clusters"])
        fields["barrier_paths"] = BarrierPaths.from_fields(fields["barrier_paths"])
        lines = [SourceLine(*line) for line in fields.pop("lines")]
        for name in ("sites", "blocks"):
            fields[name] = tuple(_site(row, lines) for row in fields[name])
        return cls(**fields)


def _site(row: list[Any] | None, lines: list[SourceLine]) -> Site | None:
    """Convert a JSON row, which contains the index of its line, to a site."""
    if row is None:
        return None
    opcode, form, ptx_line, number, is_reduction = row
    return Site(opcode, form, ptx_line, None if number is None else lines[number], is_reduction)


_OF_CLUSTERS = {"mapa", "getctarank", "barrier.cluster_arrive", "barrier.cluster_wait", "st.async", "red.async"}
_CLUSTER_WORDS = frozenset({"multicast::cluster", "multicast::cluster::all", "cta_group::2"})
_REGISTERS = ("%cluster", "%nclusterid", "%is_explicit_cluster")
_REGISTERS_PER_SM, _MOST_REGISTERS, _REGISTER_UNIT, _THREAD_UNIT = 65536, 256, 8, 128
"""Registers of a multiprocessor and of a thread. They are assigned in units of registers per thread, to four warps at a
time."""


@dataclass(frozen=True)
class ClusterFacts:
    """The cluster properties of one kernel."""

    required: tuple[int, int, int] | None
    """`.reqnctapercluster`: blocks of a cluster in x, y, z."""
    most_blocks: int | None
    """`.maxclusterrank`."""
    explicit: bool
    """`.explicitcluster`: the launch has to specify the cluster."""
    knows: bool
    """Whether the kernel uses any cluster feature. Only then do addresses of shared memory contain their block's
    rank."""

    @classmethod
    def of(cls, entry: Function, flat: Function) -> ClusterFacts:
        """Determine the properties of an entry.

        `flat` contains its instructions and those of the functions that it calls.
        """
        knows = entry.cluster is not None or any(_knows_clusters(i) for i in flat.instructions())
        return cls(entry.cluster, entry.most_cluster_blocks, entry.explicit_cluster, knows)

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> ClusterFacts:
        """Restore the properties from JSON."""
        required = fields["required"]
        return cls(**{**fields, "required": None if required is None else tuple(required)})


def reads_grid_barrier(instruction: Instruction) -> bool:
    """Whether the instruction reads the address of the barrier of `grid.sync()`."""
    return any(isinstance(o, Reg) and o.name.startswith("%envreg") for o in names_in(instruction))


def entry_registers(entry: Function, flat: Function) -> int | None:
    """Return the maximum registers per thread at launch if `setmaxnreg` changes them; None if it does not.

    They follow from `.maxnreg`, or from `.maxntid` and `.minnctapersm`: ptxas ignores `setmaxnreg` without these.
    """
    if not any(i.opcode == "setmaxnreg" for i in flat.instructions()):
        return None
    bounds = []
    if entry.most_registers is not None:
        bounds.append(-(-entry.most_registers // _REGISTER_UNIT) * _REGISTER_UNIT)
    if entry.most_threads is not None and entry.least_blocks is not None:
        threads = -(-entry.most_threads // _THREAD_UNIT) * _THREAD_UNIT
        share = _REGISTERS_PER_SM // (threads * max(entry.least_blocks, 1))
        bounds.append(share // _REGISTER_UNIT * _REGISTER_UNIT)
    return min(*bounds, _MOST_REGISTERS) if bounds else None


def _knows_clusters(instruction: Instruction) -> bool:
    if instruction.row_name in _OF_CLUSTERS or not _CLUSTER_WORDS.isdisjoint(instruction.modifiers):
        return True
    return any(isinstance(o, Reg) and o.name.startswith(_REGISTERS) for o in names_in(instruction))
