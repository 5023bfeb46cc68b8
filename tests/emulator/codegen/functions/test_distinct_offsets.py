"""Distinct offsets and sectors are counted right in every form that this CPU can run."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from harness.emulator.abi import layout as at
from harness.emulator.codegen.cpu import ANY_CPU, Cpu
from harness.emulator.codegen.functions.distinct_offsets import COUNT_DISTINCT, SECTOR_BITS, distinct_offsets_ir
from harness.emulator.native.llvm_compiler import compile_ir, host_cpu
from harness.emulator.native.object_loading import load_part, native_address

pytestmark = pytest.mark.compiles


def cpus() -> list[Cpu]:
    return [ANY_CPU, *(cpu for cpu in (Cpu("znver4", host_cpu().features),) if cpu.compares_fast)]


@pytest.mark.parametrize("cpu", cpus(), ids=lambda cpu: cpu.name or "any")
def test_counts(cpu: Cpu) -> None:
    load_part("core")
    own, symbol = f"distinct_{cpu.compares_fast}", f"call_distinct_{cpu.compares_fast}"
    text = distinct_offsets_ir(cpu).replace(COUNT_DISTINCT, own)
    text += f"""
    define i64 @{symbol}(i64 %place) {{
      %pointer = inttoptr i64 %place to ptr
      %offsets = load <32 x i32>, ptr %pointer, align 4
      %counts = call i64 @{own}(<32 x i32> %offsets)
      ret i64 %counts
    }}
    """
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(native_address(symbol, compile_ir(text)))
    random = np.random.default_rng(3)
    requests = [random.permutation(np.arange(at.LANES) * step) for step in (1, 4, 8, 32, 1 << 20)]
    requests += [random.integers(0, most, at.LANES) for most in (2, 5, 33, 64, 500, 5000, 1 << 31) for _ in range(30)]
    # Two lanes have one offset, or one sector: every pair of lanes.
    for a in range(at.LANES):
        for b in range(a):
            for distance in (0, 4):
                offsets = random.permutation(at.LANES) * 64
                offsets[b] = offsets[a] + distance
                requests.append(offsets)
    for offsets in requests:
        row = np.ascontiguousarray(offsets, np.int32)
        counts = function(row.ctypes.data)
        assert counts & 0xFFFFFFFF == len(np.unique(row)), row
        assert counts >> 32 == len(np.unique(row >> SECTOR_BITS)), row
