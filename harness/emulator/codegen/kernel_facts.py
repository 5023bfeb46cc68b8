"""What a launch has to know about a kernel besides its native code; kept beside that code on disk, as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from harness.emulator.codegen.cluster_facts import ClusterFacts
from harness.emulator.ptx.instructions import Instruction, SourceLine
from harness.emulator.ptx.opcodes import OPCODES, MemoryAccess


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
    """Whether what this kernel reads and writes there is global traffic. Constants have a cache of their own."""


@dataclass(frozen=True)
class SharedVariable:
    """A `.shared` variable."""

    name: str
    offset: int
    size_bytes: int
    """0: as much as the launch gives."""


@dataclass(frozen=True)
class Site:
    """An instruction that generated code refers to by number: whatever touches memory or can fault."""

    opcode: str
    """The name of its row in `ptx.opcodes.OPCODES`."""
    form: str
    """Opcode and modifiers."""
    ptx_line: int
    source: SourceLine | None

    @classmethod
    def of(cls, instruction: Instruction) -> Site:
        """The site of an instruction."""
        return cls(instruction.row_name, instruction.form, instruction.ptx_line, instruction.source)

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Site:
        """A site that was written as JSON."""
        source = fields["source"]
        return cls(**{**fields, "source": None if source is None else SourceLine(**source)})

    @property
    def memory(self) -> MemoryAccess | None:
        """What it does to memory, if anything."""
        return OPCODES[self.opcode].memory if self.opcode in OPCODES else None

    @property
    def file_and_line(self) -> tuple[str, int]:
        """Of the source; empty and 0 where the compiler gave none."""
        return (self.source.file, self.source.line) if self.source else ("", 0)

    def where(self) -> str:
        """For messages: the PTX line and, if known, the source line."""
        at = f"PTX line {self.ptx_line}"
        return f"{self.source.file}:{self.source.line} ({at})" if self.source else at


@dataclass(frozen=True)
class KernelFacts:
    """All but the code."""

    parameters: tuple[Parameter, ...]
    shared_bytes: int
    """Static shared memory; dynamic shared memory begins here."""
    local_bytes: int
    """Local memory per thread."""
    variables: tuple[ModuleVariable, ...]
    """By number."""
    shared_variables: tuple[SharedVariable, ...]
    """By offset."""
    register_bytes: int
    """Per warp."""
    clear_registers: bool
    """Whether some register may be read before it is written."""
    ordered: bool
    """Whether blocks have to run one after the other, because atomics on global memory connect them."""
    copies: bool
    """Whether it has asynchronous copies, which need queues."""
    async_proxy: bool
    """Whether it has mbarriers, bulk copies or products of warpgroups, which need memory for what is under way."""
    clusters: ClusterFacts
    sites: tuple[Site, ...]
    blocks: tuple[Site | None, ...]
    """Some instruction of each block, to say where a warp is."""

    def to_json(self) -> bytes:
        """For the cache."""
        fields = asdict(self)
        for variable in fields["variables"]:
            if variable["initial"] is not None:
                variable["initial"] = variable["initial"].hex()
        return json.dumps(fields).encode()

    @classmethod
    def from_json(cls, text: bytes) -> KernelFacts:
        """Back again."""
        fields = json.loads(text)
        fields["parameters"] = tuple(Parameter(**p) for p in fields["parameters"])
        fields["variables"] = tuple(
            ModuleVariable(**{**v, "initial": None if v["initial"] is None else bytes.fromhex(v["initial"])})
            for v in fields["variables"]
        )
        fields["shared_variables"] = tuple(SharedVariable(**v) for v in fields["shared_variables"])
        fields["clusters"] = ClusterFacts.from_fields(fields["clusters"])
        fields["sites"] = tuple(Site.from_fields(s) for s in fields["sites"])
        fields["blocks"] = tuple(None if b is None else Site.from_fields(b) for b in fields["blocks"])
        return cls(**fields)
