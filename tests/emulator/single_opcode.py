"""Single instructions on the emulator: PTX text around them, arrays of operands in, the results' bits out.

Each thread takes one set of operands. They are loaded and stored as raw bits, so that NaN payloads and signs of zero
count. Many cases share one module, because each module costs one run of LLVM.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.emulator.abi import layout as at
from harness.emulator.launch.aligned_memory import aligned_zeros
from harness.emulator.launch.configuration import Geometry, LaunchOptions
from harness.emulator.launch.device_memory import DeviceBuffer
from harness.emulator.launch.kernel_launch import launch
from harness.emulator.native.kernel_cache import native_kernel

Array = npt.NDArray[Any]

HEADER = ".version 8.4\n.target sm_90\n.address_size 64\n"
OPERANDS = "abcfgh"
RESULTS = "de"
_BITS = {"b8": np.uint8, "b16": np.uint16, "b32": np.uint32, "b64": np.uint64, "pred": np.bool_}
_THREADS_PER_BLOCK = 128
_STEP_LIMIT = 1_000_000


@dataclass(frozen=True)
class Case:
    """Instructions that read the registers a, b, c, f, g, h and write d and e."""

    text: str
    operands: tuple[Array, ...]
    """One array per register; the dtype's size is the register's width, bool makes it a predicate."""
    results: tuple[str, ...]
    """Types of d and e. They hold zero before the instructions run."""


def case(text: str, results: str, *operands: Array) -> Case:
    """A `Case`; `results` is one type or two, such as `b32` or `b32 pred`."""
    return Case(text, operands, tuple(results.split()))


def run_cases(cases: Sequence[Case]) -> list[tuple[Array, ...]]:
    """The results' bits of each case, one array per result. A case's operands are broadcast against each other."""
    module = CaseModule(cases)
    results = np.zeros(module.result_bytes, dtype=np.uint8)
    run_ptx(module.text, {"operands": module.operands, "results": results}, module.grid, module.block, module=module)
    return module.unpack(results)


def run_case(text: str, results: str, *operands: Array) -> Array:
    """The first result of a single case."""
    return run_cases([case(text, results, *operands)])[0][0]


Check = tuple[Case, tuple[Array, ...]]


def check(checks: Sequence[Check], nan_of: Callable[[Array], Array] | None = None) -> None:
    """Run cases and compare every result bit by bit; `nan_of` tells NaNs, of which any one is as good as another."""
    for (single, expected), found in zip(checks, run_cases([single for single, _ in checks])):
        assert len(found) == len(expected), single.text
        for got, wanted in zip(found, expected):
            assert got.dtype == wanted.dtype and got.shape == wanted.shape, single.text
            wrong = got != wanted
            if nan_of is not None:
                wrong &= ~(nan_of(got) & nan_of(wanted))
            assert not wrong.any(), _report(single, got, wanted, int(np.argmax(wrong)), int(wrong.sum()))


def _report(single: Case, got: Array, wanted: Array, place: int, count: int) -> str:
    operands = [hex(o.reshape(-1)[place]) for o in np.broadcast_arrays(*single.operands)]
    return (
        f"{single.text} with {', '.join(operands)} gives {hex(got[place])} instead of {hex(wanted[place])}; "
        f"{count} of {got.size} results are wrong"
    )


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
    scalars: tuple[bytes, ...]
    before: Mapping[str, Array]
    """Buffers in the order of the kernel's parameters, as bytes."""
    after: Mapping[str, Array]
    module: CaseModule | None
    """Of `run_cases`."""

    @property
    def digest(self) -> str:
        """The same where the same kernel is given the same."""
        parts = [self.text, self.entry, str((self.grid, self.block, self.shared_bytes, self.scalars))]
        buffers = [name.encode() + data.tobytes() for name, data in self.before.items()]
        return hashlib.sha256(b"\0".join([*(part.encode() for part in parts), *buffers])).hexdigest()[:16]


LISTENERS: list[Callable[[Launched], None]] = []
"""Told of every kernel that ran to its end."""


def run_ptx(
    text: str,
    buffers: Mapping[str, Array],
    grid: int | tuple[int, int, int] = 1,
    block: int | tuple[int, int, int] = 32,
    shared_bytes: int = 0,
    scalars: Sequence[bytes] = (),
    seed: int = 0,
    entry: str = "kernel",
    module: CaseModule | None = None,
) -> None:
    """Launch a kernel whose parameters are pointers to the buffers, then the scalars; the arrays are updated."""
    memory = []
    before = {name: array.reshape(-1).view(np.uint8).copy() for name, array in buffers.items()}
    for name, array in buffers.items():
        memory.append(DeviceBuffer(name, aligned_zeros(array.nbytes)[: array.nbytes]))
        memory[-1].data[:] = array.reshape(-1).view(np.uint8)
    pointers = [at.buffer_address(index).to_bytes(8, "little") for index in range(len(memory))]
    geometry = Geometry(_three(grid), _three(block), shared_bytes)
    options = LaunchOptions(_STEP_LIMIT, 2, seed)
    launch(native_kernel(text, entry), entry, geometry, (*pointers, *scalars), memory, options)
    for array, buffer in zip(buffers.values(), memory):
        array.reshape(-1).view(np.uint8)[:] = buffer.data
    after = {name: array.reshape(-1).view(np.uint8).copy() for name, array in buffers.items()}
    shape = (_three(grid), _three(block), shared_bytes, tuple(scalars))
    for listener in LISTENERS:
        listener(Launched(text, entry, *shape, before, after, module))


def run_body(body: str, buffers: Mapping[str, Array], declarations: str = "", **geometry: Any) -> None:
    """Launch a kernel of these statements. It finds each buffer's address in the register of its name, and `tid`.

    Free registers: r0 to r31 (b32), q0 to q31 (b64), h0 to h15 (b16), p0 to p7. `declarations` stand before the kernel.
    """
    lines = [HEADER, declarations]
    lines.append(f".visible .entry kernel({', '.join(f'.param .u64 {name}_0' for name in buffers)}) {{")
    lines.append(".reg .b32 r<32>, tid; .reg .b64 q<32>; .reg .b16 h<16>; .reg .pred p<8>;")
    for name in buffers:
        lines.append(f".reg .b64 {name}; ld.param.u64 {name}, [{name}_0];")
    run_ptx("\n".join([*lines, "mov.u32 tid, %tid.x;", body, "ret;", "}"]), buffers, **geometry)


def _three(extents: int | tuple[int, int, int]) -> tuple[int, int, int]:
    return (extents, 1, 1) if isinstance(extents, int) else extents
