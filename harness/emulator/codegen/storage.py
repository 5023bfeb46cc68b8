"""Locations of a kernel's symbols, and facts about its registers that are determined before its code is emitted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.emulator.abi import layout as at
from harness.emulator.codegen.kernel_facts import ModuleVariable
from harness.ptx.instructions import Function, Instruction, Module, Symbol, Variable, names_in
from harness.ptx.types import PtxType

HEAP = "device heap"
"""Name of the variable that `malloc` allocates from. No name in PTX contains a space."""


class Storage:
    """Locations of symbols: offsets of shared and local variables, addresses of module variables and parameters."""

    def __init__(self) -> None:
        self.addresses: dict[str, tuple[str, int]] = {}
        """Space and address within that space, by symbol."""
        self.parameters: dict[str, int] = {}
        """Offset in the parameter block, by parameter of the entry."""
        self.static_shared_bytes = 0
        """Offset at which dynamic shared memory begins."""
        self.shared_arrays: dict[str, int] = {}
        """Index in `KernelFacts.shared_variables`, by symbol in shared memory."""
        self.arrays_of_registers: dict[str, str] = {}
        """Symbol in shared memory that a register's addresses provably belong to, by register; for the sanitizer."""


@dataclass(frozen=True)
class Registers:
    """The registers of one function."""

    types: dict[str, PtxType]
    flushed: frozenset[str] = frozenset()
    """Registers that never hold a subnormal float, see `flushed_registers`."""
    lasting: frozenset[str] = frozenset()
    """Registers with a permanent location in the warp's memory: some block reads them before it writes them, or the
    runtime accesses them."""
    uniform: frozenset[str] = frozenset()
    """Registers in which all running lanes have the same value, see `uniform_registers`."""


Places = Mapping[str, tuple[str, int]]
"""Space and address by name."""


def link_variables(placed: Sequence[Variable], places: Places, function: Function) -> tuple[ModuleVariable, ...]:
    """The variables in order, with addresses filled in.

    Raises `UnsupportedInstruction`, naming the instruction, if `function` can reach an address of what is neither a
    variable nor a function.
    Unreachable variables may contain anything.
    """
    by_name = {variable.name: variable for variable in placed}
    reached: set[str] = set()
    for instruction in function.instructions():
        for operand in names_in(instruction):
            if not isinstance(operand, Symbol):
                continue
            for variable in _reachable(operand.name, by_name, reached):
                _check_links(variable, places, instruction)
    return tuple(
        ModuleVariable(
            v.name,
            v.size_bytes,
            linked_bytes(v, places),
            v.space == "global" and (v.name in reached or v.name == HEAP),
            v.space == "const",
        )
        for v in placed
    )


def module_variables(module: Module) -> list[Variable]:
    """The variables in global and constant memory of a module, in the order of their addresses.

    The first is the heap, if a function calls `malloc` or `free`.
    """
    heap = any(name in module.functions and module.functions[name].body is None for name in ("malloc", "free"))
    found = [Variable(HEAP, "global", at.HEAP_HEAD, at.HEAP_BYTES)] if heap else []
    return found + [variable for variable in module.variables.values() if variable.space in ("global", "const")]


def module_places(module: Module) -> dict[str, tuple[str, int]]:
    """Space and address of each function, and of each variable in global and constant memory."""
    places = {name: ("function", at.function_address(number)) for number, name in enumerate(module.functions)}
    return places | {
        v.name: (v.space, at.variable_address(number)) for number, v in enumerate(module_variables(module))
    }


def declared_variables(module: Module) -> tuple[ModuleVariable, ...]:
    """The variables of a module, with the addresses that they have in every kernel."""
    placed, places = module_variables(module), module_places(module)
    return tuple(
        ModuleVariable(v.name, v.size_bytes, linked_bytes(v, places), v.space == "global", v.space == "const")
        for v in placed
    )


def _reachable(name: str, by_name: Mapping[str, Variable], reached: set[str]) -> Iterator[Variable]:
    """The variable with that name and those that it points to, each once.

    `reached` contains the names already visited.
    """
    waiting = [name]
    while waiting:
        here = waiting.pop()
        if here in by_name and here not in reached:
            reached.add(here)
            yield by_name[here]
            waiting += [link.target for link in by_name[here].links]


def _check_links(variable: Variable, places: Places, user: Instruction) -> None:
    for link in variable.links:
        space, _ = places.get(link.target, ("", 0))
        if space not in ("global", "const", "function"):
            raise user.unsupported(f"variable '{variable.name}' holds the address of '{link.target}', no variable")


def linked_bytes(variable: Variable, places: Places) -> bytes | None:
    """The initial bytes of a variable with the addresses that it contains; None without an initializer."""
    if variable.initial is None:
        return None
    filled = bytearray(variable.initial)
    for link in variable.links:
        _, address = places.get(link.target, ("", 0))
        filled[link.offset : link.offset + link.size_bytes] = link.bits(address).to_bytes(link.size_bytes, "little")
    return bytes(filled)
