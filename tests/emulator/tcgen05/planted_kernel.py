"""A kernel with one product of ones, and statements of a test in it: what a user sees of a mistake with `tcgen05`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from blackwell_kernel import find_blackwell, run_blackwell
from product_model import InstructionDescriptor
from shared_operands import SharedDescriptor

from harness.model.finding import Finding
from harness.support.errors import KernelFault

N = 32
FORM = InstructionDescriptor("f32", "f16", "f16", 128, N)
SUM = float(FORM.depth)
"""Each element of D."""
_ROWS = 16
"""Bytes of one row of one unit: A and B have two columns of 128 units, without a swizzle."""
DESCRIPTOR = SharedDescriptor(0, 128 * _ROWS, 128, 0).encode()
COLUMNS = 64
"""That the kernel allocates."""

KERNEL = f"""
#define DESCRIBED(p) ({DESCRIPTOR:#x}ull + (place_of(p) >> 4))
#define PRODUCT(adds) MMA(1, f16, base, DESCRIBED(s), DESCRIBED(s + 1024), {FORM.encode():#x}u, adds)
#define READ(column) {{ u32 r = load1(mine + (column)); LOADED(); out[128 * b + t] = r; }}
#define ALL() BEFORE(); __syncthreads(); AFTER()
#define ALIGNED __align__(1024)
extern "C" __global__ void k(u32* out, const u32* given) {{
  __shared__ ALIGNED u32 s[2048]; __shared__ u64 bar; __shared__ u64 other; __shared__ u32 place; __shared__ u32 more;
  u32 t = threadIdx.x, w = t / 32, b = blockIdx.x; (void)w; (void)b;
  for (int i = t; i < 2048; i += blockDim.x) s[i] = 0x3c003c00;
  if (t == 0) {{ init(&bar, 1); init(&other, 1); more = 0; }}
  FENCE
  START
  u32 base = place, mine = base + (w << 21); (void)mine;
#line 1 "planted.cu"

BODY
#line 100 "planted.cu"
  END
}}
"""
START = f"if (w == 0) ALLOC(1, &place, {COLUMNS}); ALL();"
END = f"ALL(); if (w == 0) DEALLOC(1, base, {COLUMNS});"


def _source(body: str, start: str, end: str, fence: str) -> str:
    text = KERNEL.replace("START", start).replace("END", end).replace("FENCE", fence)
    return text.replace("BODY", body.strip("\n"))


def _launched(
    body: str, start: str, end: str, fence: str, blocks: int, given: Sequence[int], launch: dict[str, Any]
) -> Any:
    """The source, its arrays and arguments, and the options of the launch."""
    arrays = {"out": np.zeros((blocks, 128), np.float32), "given": np.array([*given, 0], np.uint32)}
    launch |= {"grid": (blocks, 1, 1), "block": (launch.pop("size", 128), 1, 1)}
    return _source(body, start, end, fence), arrays, ("out", "given"), launch


def values_of(
    body: str,
    start: str = START,
    end: str = END,
    fence: str = "TO_ASYNC();",
    blocks: int = 1,
    given: Sequence[int] = (),
    **launch: Any,
) -> np.ndarray:
    """What the statements leave in `out`, float32 (blocks, 128). They begin at planted.cu:2 and may read `given`.

    `size` is the number of threads of a block."""
    source, arrays, args, launch = _launched(body, start, end, fence, blocks, given, launch)
    after, _ = run_blackwell(source, arrays, args, **launch)
    return after["out"]


def findings_of(
    body: str,
    start: str = START,
    end: str = END,
    fence: str = "TO_ASYNC();",
    blocks: int = 1,
    given: Sequence[int] = (),
    **launch: Any,
) -> tuple[Finding, ...]:
    """What the sanitizer finds in the same kernel."""
    source, arrays, args, launch = _launched(body, start, end, fence, blocks, given, launch)
    return find_blackwell(source, arrays, args, **launch)


def fault_of(body: str, **kernel: Any) -> str:
    """The message of the fault that the statements cause."""
    try:
        found = values_of(body, **kernel)
    except KernelFault as fault:
        return str(fault)
    raise AssertionError(f"no fault, but {np.unique(found)}")
