"""A warp's memory requests, made to the runtime's native functions and to those that Python can run."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.emulator.abi import context
from harness.emulator.abi import layout as at
from harness.emulator.codegen.functions.global_accesses import ARGUMENTS, result_of
from harness.emulator.codegen.vector_ir_builder import vector
from harness.emulator.launch.memory.aligned_memory import aligned_zeros
from harness.emulator.native.llvm_compiler import compile_ir
from harness.emulator.native.object_loading import load_part, native_address

BUFFER_BYTES = 4096
LOCAL_BYTES = 64
SITES, COLUMNS, SITE = 3, 3, 1
RESULTS = ("FAULT_KIND", "FAULT_SITE", "FAULT_LANE", "FAULT_ADDRESS", "FAULT_SIZE")


class Memory:
    """A context with two buffers and local memory, and a warp's state."""

    def __init__(self) -> None:
        random = np.random.default_rng(1)
        self.context = np.zeros(256, np.int64)
        self.buffers = [aligned_zeros(BUFFER_BYTES)[:BUFFER_BYTES] for _ in range(2)]
        for buffer in self.buffers:
            buffer[:] = random.integers(0, 256, BUFFER_BYTES)
        self.local = random.integers(0, 256, LOCAL_BYTES * at.LANES).astype(np.uint8)
        self.table = np.array([[b.ctypes.data, b.nbytes] for b in self.buffers], np.int64)
        self.counters = np.zeros((SITES, COLUMNS, at.COUNTERS_PER_ENTRY), np.int64)
        self.warp = aligned_zeros(at.REGISTERS)
        self.warp[at.DATA : at.DATA + 512] = random.integers(0, 256, 512)
        for name, value in (
            ("BUFFERS", self.table.ctypes.data),
            ("BUFFER_COUNT", len(self.buffers)),
            ("COUNTERS", self.counters.ctypes.data),
            ("COUNTER_COLUMNS", COLUMNS),
            ("LOCAL_BASE", self.local.ctypes.data),
            ("LOCAL_SIZE", LOCAL_BYTES),
        ):
            self.context[getattr(context, name) // 8] = value

    @property
    def pointers(self) -> tuple[int, int]:
        """Addresses of the context and of the warp's state."""
        return self.context.ctypes.data, self.warp.ctypes.data

    def request(self, addresses: npt.NDArray[np.int64]) -> None:
        self.warp[at.ADDRESSES : at.ADDRESSES + 256].view(np.int64)[:] = addresses

    def outcome(self) -> tuple[Any, ...]:
        """Counts, fault, and bytes of the buffers."""
        faults = [int(self.context[getattr(context, name) // 8]) for name in RESULTS]
        return self.counters.tolist(), faults, [memory.tobytes() for memory in (*self.buffers, self.local)]

    def rows(self, start: int, size: int, mask: int) -> list[bytes]:
        """What is in the rows of active lanes, `size` bytes per lane."""
        whole = self.warp[start : start + size * at.LANES].reshape(at.LANES, size)
        return [whole[lane].tobytes() for lane in range(at.LANES) if mask >> lane & 1]


def native_access(name: str, shape: tuple[str, int]) -> Any:
    """A load or store of global memory, of context, warp, site, space and mask: addresses and data are in the warp."""
    load_part("core")
    result, symbol = result_of(name, shape), f"call_{name}"
    kinds, names = zip(*(argument.rsplit(" ", 1) for argument in ARGUMENTS))
    parameters = ", ".join(ARGUMENTS[:-1])
    lines = [
        f"declare {result} @sandbox_{name}({', '.join(kinds)})",
        f"define i64 @{symbol}({parameters}) {{",
        "  %pointer = inttoptr i64 %warp to ptr",
        f"  %place = getelementptr i8, ptr %pointer, i64 {at.ADDRESSES}",
        f"  {names[-1]} = load {kinds[-1]}, ptr %place, align 64",
        f"  %result = call {result} @sandbox_{name}({', '.join(ARGUMENTS)})",
    ]
    if result == "i64":
        lines += ["  ret i64 %result", "}"]
    else:
        lines += [
            f"  %row = extractvalue {result} %result, 1",
            f"  %data = getelementptr i8, ptr %pointer, i64 {at.DATA}",
            f"  store {vector(shape[0])} %row, ptr %data, align 64",
            f"  %failed = extractvalue {result} %result, 0",
            "  ret i64 %failed",
            "}",
        ]
    address = native_address(symbol, compile_ir("\n".join([*lines, ""])))
    return ctypes.CFUNCTYPE(*[ctypes.c_int64] * len(ARGUMENTS))(address)


def native(name: str, arguments: int, part: str = "core") -> Any:
    """A function in a part of the runtime, through one of our own that calls it."""
    for each in dict.fromkeys(("core", part)):
        load_part(each)
    kinds = ", ".join(["i64"] * arguments)
    values = ", ".join(f"i64 %{number}" for number in range(arguments))
    symbol = f"call_{name}"
    text = f"declare i64 @sandbox_{name}({kinds})\ndefine i64 @{symbol}({kinds}) {{\n"
    text += f"  %result = call i64 @sandbox_{name}({values})\n  ret i64 %result\n}}\n"
    return ctypes.CFUNCTYPE(*[ctypes.c_int64] * (arguments + 1))(native_address(symbol, compile_ir(text)))
