"""Kernels with `wgmma`, in text: one instruction as a statement, and one product on random factors."""

from __future__ import annotations

import itertools

WIDE_TYPES = (("f32.f16.f16", 16), ("f16.f16.f16", 16), ("f32.bf16.bf16", 16), ("f32.tf32.tf32", 8))
FLOATS_OF_8 = tuple(
    (f"{d}.{a}.{b}", 32) for d in ("f32", "f16") for a, b in itertools.product(("e4m3", "e5m2"), repeat=2)
)
INTEGERS = tuple((f"s32.{a}.{b}", 32) for a, b in itertools.product(("s8", "u8"), repeat=2))
INTEGERS += tuple((f"{types}.satfinite", depth) for types, depth in INTEGERS)
TYPES = (*WIDE_TYPES, *FLOATS_OF_8, *INTEGERS)
"""Of D, A and B, and K."""
ROWS, COLUMNS, DEPTH = 64, 16, 64
REGISTERS = COLUMNS // 2


def signs(types: str, negated: str = "1, 1") -> str:
    """The operands from whether D is added to on, where nothing is turned and A is in registers."""
    kind = types.split(".")[1]
    if kind in ("s8", "u8"):
        return "1"
    return f"1, {negated}" + (", 0" if kind in ("f16", "bf16") else "")


def register_count(types: str) -> int:
    """Of D, in each thread."""
    return REGISTERS // 2 if types.startswith("f16") else REGISTERS


def wgmma(types: str, a: str, flags: str, depth: int = 16) -> str:
    """A statement: `d` += A B, with descriptors `da`, `db` and, where A is in registers, `ra`."""
    count = register_count(types)
    names = ", ".join(f"%{i}" for i in range(count))
    letter = "f" if types.startswith("f32") else "r"
    outs = ", ".join(f'"+{letter}"(d[{i}])' for i in range(count))
    given = f"{{{', '.join(f'%{count + 2 + i}' for i in range(4))}}}" if a == "registers" else f"%{count}"
    inputs = '"l"(da), "l"(db)' + (', "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3])' if a == "registers" else "")
    return (
        f'asm volatile("wgmma.mma_async.sync.aligned.m64n{COLUMNS}k{depth}.{types} {{{names}}}, {given}, %{count + 1}, '
        f'{flags};" : {outs} : {inputs});'
    )


WAY = """#define FENCE() asm volatile("wgmma.fence.sync.aligned;" ::: "memory")
#define DONE(n) asm volatile("wgmma.commit_group.sync.aligned;\\nwgmma.wait_group.sync.aligned " #n ";" ::: "memory")
"""


def fragments(types: str, depth: int, negated: str = "1, 1") -> str:
    """A from `a` in registers, (64, depth); B from `b`, (16, depth), in memory without a swizzle: rows of 32 bytes."""
    count, words = register_count(types), not types.startswith("f32")
    return f"""{WAY}
extern "C" __global__ void k(unsigned* a, unsigned* b, unsigned* y, int when) {{
  __shared__ __align__(128) unsigned s[128]; int t = threadIdx.x; int row = 16 * (t / 32) + t % 32 / 4;
  a += 512 * blockIdx.x; b += 128 * blockIdx.x; y += 128 * {count} * blockIdx.x;
  // 8 rows of 16 bytes are together; the next 8 rows are 128 bytes on, the next 16 bytes of each row 256.
  int n = t / 8, w = t % 8;
  s[64 * (w / 4) + 32 * (n / 8) + 4 * (n % 8) + w % 4] = b[8 * n + w];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  unsigned ra[4];
  for (int i = 0; i < 4; ++i) ra[i] = a[8 * (row + 8 * (i % 2)) + t % 4 + 4 * (i / 2)];
  {"unsigned" if words else "float"} d[{count}];
  for (int i = 0; i < {count}; ++i) d[i] = 0;
  u64 da = 0, db = place_of(s) >> 4 | (u64)(256 >> 4) << 16 | (u64)(128 >> 4) << 32;
  FENCE();
  {wgmma(types, "registers", signs(types, negated), depth)}
  if (when == 1) DONE(1);
  if (when == 2) {{ DONE(0); }}
  if (when == 3) {{ if (t >= 32) {{ DONE(0); }} }}
  if (when == 4) {{
    asm volatile("wgmma.commit_group.sync.aligned;"); s[t] = 0; __syncthreads();
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }}
  for (int i = 0; i < {count}; ++i) y[{count} * t + i] = {"d[i]" if words else "__float_as_uint(d[i])"};
}}"""
