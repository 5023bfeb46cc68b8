"""Kernels of single instructions: the PTX text around them, what a kernel that ran was given and what it left."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.model.tensor_map import TensorMap

Array = npt.NDArray[Any]

HEADER = ".version 8.4\n.target sm_90\n.address_size 64\n"
OPERANDS = "abcfgh"
RESULTS = "de"
_BITS = {"b8": np.uint8, "b16": np.uint16, "b32": np.uint32, "b64": np.uint64, "pred": np.bool_}
_THREADS_PER_BLOCK = 128


@dataclass(frozen=True)
class Case:
    """Instructions that read the registers a, b, c, f, g, h and write d and e."""

    text: str
    operands: tuple[Array, ...]
    """One array per register; the dtype's size is the register's width, bool makes it a predicate."""
    results: tuple[str, ...]
    """Types of d and e. They hold zero before the instructions run."""


class CaseModule:
    """One kernel that runs all cases one after the other, and the layout of its two buffers."""

    def __init__(self, cases: Sequence[Case]) -> None:
        broadcast = [[o.reshape(-1) for o in np.broadcast_arrays(*single.operands)] for single in cases]
        self.cases = cases
        self._counts = [operands[0].size for operands in broadcast]
        self.grid = -(-max(self._counts) // _THREADS_PER_BLOCK)
        self.block = _THREADS_PER_BLOCK
        threads = self.grid * self.block
        self.result_bytes = 0
        self._places: list[list[int]] = []
        parts: list[Array] = []
        texts = []
        position = 0
        for single, operands in zip(cases, broadcast):
            places = []
            for operand in operands:
                # Threads beyond the end of an array take its operands again.
                parts.append(np.resize(np.ascontiguousarray(operand), threads).view(np.uint8))
                places.append(position)
                position += parts[-1].size
            self._places.append([])
            for kind in single.results:
                self._places[-1].append(self.result_bytes)
                self.result_bytes += threads * np.dtype(_BITS[kind]).itemsize
            texts.append(_case_text(single, [o.dtype for o in operands], places, self._places[-1]))
        self.operands: Array = np.concatenate(parts)
        self.text = "\n".join([*_PROLOGUE, *texts, "ret;", "}"])

    def unpack(self, results: Array) -> list[tuple[Array, ...]]:
        """The bytes that the kernel wrote -> arrays."""
        found = []
        for single, places, count in zip(self.cases, self._places, self._counts):
            kinds = [np.dtype(_BITS[kind]) for kind in single.results]
            found.append(tuple(results[p : p + count * k.itemsize].view(k).copy() for p, k in zip(places, kinds)))
        return found


_PROLOGUE = [
    HEADER,
    ".visible .entry kernel(.param .u64 operands, .param .u64 results) {",
    ".reg .b32 %index, %block, %width, %thread;",
    ".reg .b64 %in, %out, %in<9>, %out<9>;",
    "ld.param.u64 %in, [operands];",
    "ld.param.u64 %out, [results];",
    "mov.u32 %thread, %tid.x;",
    "mov.u32 %block, %ctaid.x;",
    "mov.u32 %width, %ntid.x;",
    "mad.lo.u32 %index, %block, %width, %thread;",
    *(f"mad.wide.u32 %in{size}, %index, {size}, %in;" for size in (1, 2, 4, 8)),
    *(f"mad.wide.u32 %out{size}, %index, {size}, %out;" for size in (1, 2, 4, 8)),
]


def _case_text(single: Case, dtypes: Sequence[np.dtype[Any]], sources: Sequence[int], places: Sequence[int]) -> str:
    lines = ["{", ".reg .b16 byte;"]
    for name, dtype, source in zip(OPERANDS, dtypes, sources):
        size = dtype.itemsize
        if dtype == np.bool_:
            lines += [f".reg .pred {name};", f"ld.global.u8 byte, [%in1+{source}];", f"setp.ne.b16 {name}, byte, 0;"]
        else:
            lines += [f".reg .b{max(16, 8 * size)} {name};", f"ld.global.u{8 * size} {name}, [%in{size}+{source}];"]
    for name, kind in zip(RESULTS, single.results):
        register = "b16" if kind == "b8" else kind
        lines.append(f".reg .{register} {name};")
        lines.append(f"setp.ne.b32 {name}, %index, %index;" if kind == "pred" else f"mov.{register} {name}, 0;")
    lines.append(single.text)
    for name, kind, place in zip(RESULTS, single.results, places):
        size = np.dtype(_BITS[kind]).itemsize
        if kind == "pred":
            lines += [f"selp.b16 byte, 1, 0, {name};", f"st.global.u8 [%out1+{place}], byte;"]
        else:
            lines.append(f"st.global.{kind} [%out{size}+{place}], {name};")
    return "\n".join([*lines, "}"])


@dataclass(frozen=True)
class Launched:
    """A kernel that ran: all that it was given, and what it left."""

    text: str
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    scalars: tuple[bytes | TensorMap, ...]
    """Behind the buffers; each executor encodes maps of them in its own way."""
    before: Mapping[str, Array]
    """Buffers in the order of the kernel's parameters, as bytes."""
    after: Mapping[str, Array]
    module: CaseModule | None
    """The cases of `run_cases`; None for other kernels."""

    @property
    def digest(self) -> str:
        """Hash of the kernel, its launch and its inputs."""
        parts = [self.text, self.entry, str((self.grid, self.block, self.shared_bytes, self.scalars))]
        buffers = [name.encode() + data.tobytes() for name, data in self.before.items()]
        return hashlib.sha256(b"\0".join([*(part.encode() for part in parts), *buffers])).hexdigest()[:16]


LISTENERS: list[Callable[[Launched], None]] = []
"""Told of every kernel that ran to its end."""
