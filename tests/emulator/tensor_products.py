"""One kernel for every form of Blackwell's products in one block, and what it computes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from operands import Array

from tests.emulator.tensor_kernels import run_blackwell
from tests.emulator.tensor_operands import Layout, instruction_descriptor

D_COLUMN, A_COLUMN = 0, 256
KINDS = ("f16", "tf32", "f8f6f4", "i8")
SIZES = {"f16": 2, "tf32": 4, "f8f6f4": 1, "i8": 1}


def _product(kind: str, in_tensor: bool, more: str = "", ws: str = "", scale: str = "") -> str:
    a = "[%1]" if in_tensor else "%1"
    form = f"tcgen05.mma{ws}.cta_group::1.kind::{kind}"
    register, value = ("r", "a_column") if in_tensor else ("l", "da")
    return (
        'asm volatile("{\\n.reg .pred p;\\nsetp.ne.u32 p, %4, 0;\\n'
        f'{form} [%0], {a}, %2, %3, {more}p{scale};\\n}}" '
        f':: "r"(d), "{register}"({value}), "l"(db), "r"(descriptor), "r"(adds)'
        + (', "r"(off[0]), "r"(off[1]), "r"(off[2]), "r"(off[3])' if more else "")
        + ' : "memory");'
    )


FORMS: dict[tuple[str, str], str] = {}
for _kind in KINDS:
    FORMS[_kind, "shared"] = _product(_kind, False)
    FORMS[_kind, "tensor"] = _product(_kind, True)
FORMS["f16", "ws"] = _product("f16", False, ws=".ws")
FORMS["f16", "disabled"] = _product("f16", False, more="{%5, %6, %7, %8}, ")
FORMS["f16", "scaled"] = _product("f16", False, scale=", 3")
FORMS["f16", "collector"] = _product("f16", False).replace("kind::f16 ", "kind::f16.collector::a::fill ")

KERNEL = f"""
extern "C" __global__ void k(const unsigned char* a, const unsigned char* b, const u32* d_in, u32* y, const u64* steps,
  const u32* off, int form, int count, int bytes_a, int bytes_b, u32 descriptor, u32 adds, u32 lane) {{
  extern __shared__ __align__(1024) unsigned char s[]; __shared__ u32 place; __shared__ u64 bar;
  int t = threadIdx.x, w = t / 32;
  for (int i = t; i < bytes_a; i += 128) s[i] = a[i];
  for (int i = t; i < bytes_b; i += 128) s[65536 + i] = b[i];
  if (t == 0) init(&bar, 1);
  if (w == 0) alloc(&place, 512);
  PROXY();
  __syncthreads();
  u32 own = w * 32 << 16;
  for (int c = 0; c < 256; ++c) store_cell(own + c, d_in[c * 128 + t]);
  for (int c = 0; c < 8 * count; ++c) store_cell(own + {A_COLUMN} + c, ((const u32*)a)[c * 128 + t]);
  WAIT_ST(); BEFORE(); __syncthreads(); AFTER();
  if (t == 0) {{
    for (int i = 0; i < count; ++i) {{
      u64 da = steps[2 * i] + (place_of(s) >> 4), db = steps[2 * i + 1] + (place_of(s) + 65536 >> 4);
      u32 d = {D_COLUMN} + (lane << 16), a_column = {A_COLUMN} + 8 * i + (lane << 16);
      switch (form) {{
        {" ".join(f"case {number}: {text} break;" for number, text in enumerate(FORMS.values()))}
      }}
      adds = 1;
    }}
    commit(&bar);
  }}
  wait(&bar, 0); AFTER();
  for (int c = 0; c < 256; ++c) y[c * 128 + t] = load_cell(own + c);
  WAIT_LD(); BEFORE(); __syncthreads();
  if (w == 0) dealloc(place, 512);
}}"""
"""Buffers: images of A and B, or A's words in tensor memory; cells of D before and after, column by column."""


@dataclass(frozen=True)
class Product:
    """One product in some steps of K."""

    kind: str
    rows: int
    columns: int
    types: tuple[int, int, int]
    """Numbers of the types of A, B and D."""
    steps: int = 2
    form: str = "shared"
    a: Layout = field(default=Layout(False, "none", 4096, 128))
    b: Layout = field(default=Layout(False, "none", 4096, 128))
    negated: tuple[int, int] = (0, 0)
    adds: int = 0
    lane: int = 0
    """The first lane of D."""
    more: int = 0
    """Further bits of the instruction descriptor."""

    @property
    def size(self) -> int:
        """Bytes of a factor."""
        return SIZES[self.kind]

    @property
    def depth(self) -> int:
        """K of all steps."""
        return self.steps * 32 // self.size

    def run(self, a: Array, b: Array, d: Array | None = None, disabled: tuple[int, ...] = (0, 0, 0, 0)) -> Array:
        """Cells of D, (256 columns, 128 lanes) of bits, from patterns (rows, K) and (columns, K)."""
        turned = int(self.a.turned), int(self.b.turned)
        word = instruction_descriptor(self.rows, self.columns, *self.types, self.negated, turned, self.more)
        each = 32 // self.size
        steps = []
        for step in range(self.steps):
            steps += [x.descriptor(x.step(step * each, self.size)) for x in (self.a, self.b)]
        image = words_of_a(a, self.rows, self.lane) if self.form == "tensor" else self.a.image(a, 65536)
        arrays = {
            "a": image, "b": self.b.image(b, 65536), "y": np.zeros((256, 128), np.uint32),
            "d": np.zeros((256, 128), np.uint32) if d is None else d, "steps": np.array(steps, np.uint64),
            "off": np.array(disabled, np.uint32),
        }  # fmt: skip
        number = [*FORMS].index((self.kind, self.form))
        args = ("a", "b", "d", "y", "steps", "off", np.int32(number), np.int32(self.steps), np.int32(image.nbytes),
                np.int32(65536), np.uint32(word), np.uint32(self.adds), np.uint32(self.lane))  # fmt: skip
        return run_blackwell(KERNEL, arrays, args, block=(128, 1, 1), shared_bytes=131072)[0]["y"]


def words_of_a(a: Array, rows: int, lane: int) -> Array:
    """Cells of A in tensor memory: words of K of the row in each lane."""
    words = np.ascontiguousarray(a).view(np.uint32)
    found = np.full((words.shape[1], 128), 0xFFFFFFFF, np.uint32)
    for row in range(rows):
        found[:, lane_of(row, rows, lane)] = words[row]
    return found


def lane_of(row: int, rows: int, lane: int = 0) -> int:
    """The lane of a row of D; with 64 rows, 16 of each warp's 32 lanes."""
    return row if rows == 128 else 32 * (row // 16) + row % 16 + lane
