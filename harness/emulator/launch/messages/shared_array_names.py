"""Names arrays in shared memory, and their elements, as the kernel's source does.

PTX has neither the type of an array's elements nor, for Numba, its name. Both are looked up in the source; if that is
not found or leaves doubt, the name is that of the PTX and elements are unknown.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from harness.emulator.codegen.kernel_facts import SharedVariable, Site
from harness.ptx.instructions import source_name
from harness.support.source_text import source_lines

DYNAMIC = "dynamic shared memory"
"""The name of dynamic shared memory: its symbol is the beginning of all arrays in it."""
_ELEMENT_BYTES = {
    "char": 1, "signed char": 1, "unsigned char": 1, "bool": 1, "int8_t": 1, "uint8_t": 1,
    "short": 2, "unsigned short": 2, "int16_t": 2, "uint16_t": 2, "half": 2, "__half": 2, "__nv_bfloat16": 2,
    "int": 4, "unsigned": 4, "unsigned int": 4, "int32_t": 4, "uint32_t": 4, "float": 4,
    "long long": 8, "unsigned long long": 8, "int64_t": 8, "uint64_t": 8, "double": 8,
}  # fmt: skip
"""Sizes of the scalar types of CUDA C++."""
_DECLARATION = re.compile(
    r"__shared__\s+(?:(?:__align__|alignas)\s*\([^)]*\)\s*|volatile\s+)*([^;\[=(]+?)\s*(\[[^;]*);"
)
_NUMBA_SYMBOL = re.compile(r"_cudapy_smem_(\d+)")


@dataclass(frozen=True)
class SharedArray:
    """An array in shared memory."""

    name: str
    element_bytes: int | None = None
    """Size of an element of an array with one axis; None if the array has several, or if it is unknown."""


@dataclass(frozen=True)
class SharedArrays:
    """The arrays in shared memory of one kernel."""

    variables: Sequence[SharedVariable]
    arrays: Sequence[SharedArray]
    """The array of each variable."""

    @classmethod
    def of(cls, variables: Sequence[SharedVariable], sites: Sequence[Site]) -> SharedArrays:
        """Look up the variables in the files of the kernel's instructions."""
        places = {site.file_and_line: None for site in sites if site.source}
        numba = _of_numba(variables, places)
        files = dict.fromkeys(file for file, _ in places)
        return cls(variables, [numba.get(variable.name) or _array(variable, files) for variable in variables])

    def name(self, variable: SharedVariable) -> str:
        """The variable's name, such as `shared memory red`."""
        return _in_words(variable, self.arrays[self.variables.index(variable)])

    def target(self, offset: int) -> tuple[str, int]:
        """The array at an offset of a block's shared memory, such as `shared memory red`, and the offset in it."""
        found = self._at(offset)
        if found is None:
            return "shared memory", offset
        return _in_words(*found), offset - found[0].offset

    def element(self, offset: int) -> str | None:
        """The element at an offset, such as `red[64]`; None if it is unknown."""
        variable, array = self._at(offset) or (None, None)
        if variable is None or array is None or not variable.size_bytes or array.element_bytes is None:
            return None
        return f"{array.name}[{(offset - variable.offset) // array.element_bytes}]"

    def _at(self, offset: int) -> tuple[SharedVariable, SharedArray] | None:
        for variable, array in reversed([*zip(self.variables, self.arrays)]):
            end = variable.offset + variable.size_bytes
            if variable.offset <= offset and (not variable.size_bytes or offset < end):
                return variable, array
        return None


def _in_words(variable: SharedVariable, array: SharedArray) -> str:
    return f"shared memory {array.name}" if variable.size_bytes else DYNAMIC


def _array(variable: SharedVariable, files: Iterable[str]) -> SharedArray:
    """An array of CUDA C++, whose declarations all have to agree on its type."""
    name = source_name(variable.name)
    sizes = {size for file in files for declared, size in _declarations(file) if declared == name}
    return SharedArray(name, sizes.pop() if len(sizes) == 1 else None)


@functools.lru_cache(maxsize=64)
def _declarations(file: str) -> tuple[tuple[str, int | None], ...]:
    """Names of the arrays that a file declares in shared memory, with their elements' sizes."""
    found: list[tuple[str, int | None]] = []
    for words, rest in _DECLARATION.findall("\n".join(source_lines(file))):
        kind, _, first = " ".join(words.split()).rpartition(" ")
        for declarator in f"{first}{rest}".split(","):
            name, *axes = re.split(r"\[", declarator)
            found.append((name.strip(), _ELEMENT_BYTES.get(kind) if len(axes) == 1 else None))
    return tuple(found)


def _of_numba(variables: Sequence[SharedVariable], places: Iterable[tuple[str, int]]) -> dict[str, SharedArray]:
    """The arrays of Numba's function by symbol, which are numbered in the order of their declarations.

    Empty if further functions declare some of them, as then their numbers are not known.
    """
    numbers = {v.name: int(match[1]) for v in variables if (match := _NUMBA_SYMBOL.search(v.name))}
    if not numbers:
        return {}
    declared = list(dict.fromkeys(array for file, line in places for array in _declared_around(file, line)))
    if len(declared) != len(numbers):
        return {}
    return dict(zip(sorted(numbers, key=lambda name: numbers[name]), declared))


@functools.lru_cache(maxsize=256)
def _declared_around(file: str, line: int) -> tuple[SharedArray, ...]:
    """The arrays that `cuda.shared.array` makes in the function around a line of Python."""
    function = next((f for f in _functions(file) if f.lineno <= line <= (f.end_lineno or 0)), None)
    if function is None:
        return ()
    nodes = [*ast.walk(function)]
    with_axes = {
        node.value.id
        for node in nodes
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and isinstance(node.slice, ast.Tuple)
    }
    calls = ((node.targets[0], node.value) for node in nodes if isinstance(node, ast.Assign))
    found = [
        (call.lineno, SharedArray(target.id, None if target.id in with_axes else _element_bytes(call)))
        for target, call in calls
        if isinstance(target, ast.Name) and isinstance(call, ast.Call) and _is_shared_array(call.func)
    ]
    return tuple(array for _, array in sorted(found, key=lambda each: each[0]))


@functools.lru_cache(maxsize=16)
def _functions(file: str) -> tuple[ast.FunctionDef, ...]:
    try:
        tree = ast.parse("\n".join(source_lines(file)))
    except SyntaxError:
        return ()
    return tuple(_functions_in(tree))


def _functions_in(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node


def _is_shared_array(function: ast.expr) -> bool:
    return ast.unparse(function).endswith("shared.array")


def _element_bytes(call: ast.Call) -> int | None:
    """Bytes of the type in `cuda.shared.array(shape, dtype)`."""
    types = [*call.args[1:2], *(keyword.value for keyword in call.keywords if keyword.arg in ("dtype", "type"))]
    if not types:
        return None
    name = ast.unparse(types[0]).rpartition(".")[2]
    return np.dtype(name).itemsize if name in np.sctypeDict else None
