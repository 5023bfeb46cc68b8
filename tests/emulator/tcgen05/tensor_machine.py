"""A kernel that runs a program of `tcgen05` instructions on tensor memory and shared memory that a test gives it.

The operands of the instructions are data, so that many tests share one compilation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from blackwell_kernel import WHOLE_MEMORY, find_blackwell, run_blackwell
from product_model import Bytes, Product
from scaled_model import ScaledProduct
from tensor_memory_model import COLUMNS, LANES, Words

from harness.model.finding import Finding

WAIT = "wait"
"""A step: commit, and wait for what was issued before."""
ROW = 16
"""Words of each step of a program."""


@dataclass(frozen=True)
class Form:
    """One instruction of the kernel, whose operands are data."""

    opcode: str
    """With its qualifiers but `.cta_group`, such as `mma.kind::f16` or `cp.128x256b`."""
    a_in_tensor_memory: bool = False
    masked: bool = False
    scale: int = 0

    def statement(self, group: int) -> str:
        """In CUDA, with the operands d, a, b, form, adds and the words m: a mask, or addresses of scale factors."""
        if self.opcode.startswith("cp."):
            copy = f"tcgen05.cp.cta_group::{group}{self.opcode[2:]} [%0], %1;"
            return f'asm volatile("{copy}" :: "r"(d), "l"(a) : "memory");'
        if self.opcode.startswith("shift"):
            return f'asm volatile("tcgen05.shift.cta_group::{group}{self.opcode[5:]} [%0];" :: "r"(d) : "memory");'
        a = "[%1]" if self.a_in_tensor_memory else "%1"
        words = 4 * group if self.masked else 0
        mask = ", {" + ", ".join(f"%{5 + i}" for i in range(words)) + "}" if words else ""
        if ".block_scale" in self.opcode:
            mask = ", [%5], [%6]"
        scale = f", {self.scale}" if self.scale else ""
        name, _, qualifiers = self.opcode.partition(".kind")
        inputs = f'"r"(d), {chr(34)}{"r" if self.a_in_tensor_memory else "l"}{chr(34)}(a), "l"(b), "r"(form), "r"(adds)'
        inputs += "".join(f', "r"(m[{i}])' for i in range(words))
        if ".block_scale" in self.opcode:
            inputs += ', "r"(base + m[0]), "r"(base + m[1])'
        return (
            'asm volatile("{\\n.reg .pred p;\\nsetp.ne.u32 p, %4, 0;\\n'
            f"tcgen05.{name}.cta_group::{group}.kind{qualifiers} [%0], {a}, %2, %3{mask}, p{scale};"
            f'\\n}}" :: {inputs} : "memory");'
        )


@dataclass(frozen=True)
class Step:
    """An instruction of a program that is no product: `opcode` of a form, an address and a descriptor."""

    opcode: str
    address: int
    descriptor: int = 0


Program = Sequence[Product | ScaledProduct | Step | str]
"""Instructions, and `WAIT` where what comes before has to be complete."""


@dataclass(frozen=True)
class TensorMachine:
    """The kernel of so many forms. `blocks` is 2 where all instructions are of `.cta_group::2`."""

    forms: tuple[Form, ...]
    blocks: int = 1

    def source(self) -> str:
        """CUDA of the kernel; each block begins with its own part of `shared_in` and `memory`."""
        group, pair = self.blocks, self.blocks == 2
        factors = [
            "u32 a = base + o[2];" if form.a_in_tensor_memory else "u64 a = told(o + 2, s);" for form in self.forms
        ]
        cases = "\n".join(
            f"      case {i}: {{ {factor} {form.statement(group)} break; }}"
            for i, (factor, form) in enumerate(zip(factors, self.forms), 1)
        )
        meet = "MEET();" if pair else "__syncthreads();"
        rank = "rank_in_cluster()" if pair else "0"
        return f"""{WHOLE_MEMORY}
__device__ u64 told(const u32* o, void* s) {{ return o[0] + (place_of(s) >> 4 & 0x3fff) | (u64)o[1] << 32; }}
extern "C" __global__ void k(const u32* program, int count, const u32* shared_in, int words, u32* memory, u32 issuer) {{
  extern __shared__ __align__(1024) u32 s[];
  u64* bar = (u64*)(s + words); u32* place = s + words + 2;
  u32 t = threadIdx.x, rank = {rank}, parity = 0;
  shared_in += rank * words; memory += rank * {LANES * COLUMNS};
  for (int i = t; i < words; i += 128) s[i] = shared_in[i];
  if (t < 32) {{ ALLOC({group}, place, 512); RELINQUISH({group}); }}
  if (t == 0) init(bar, 1);
  TO_ASYNC(); __syncthreads();
  u32 base = *place;
  fill(base, memory);
  BEFORE(); {meet} AFTER();
  if (t == 0 && rank == issuer) {{
    for (int i = 0; i < count; ++i) {{
      const u32* o = program + {ROW} * i;
      u32 d = base + o[1], form = o[6], adds = o[7]; const u32* m = o + 8;
      u64 b = told(o + 4, s);
      switch (o[0]) {{
      case 0: TRACK({group}, bar); wait(bar, parity); parity ^= 1; AFTER(); break;
{cases}
      }}
    }}
  }}
  BEFORE(); {meet} AFTER();
  dump(base, memory);
  BEFORE(); {meet} AFTER();
  if (t < 32) DEALLOC({group}, base, 512);
}}"""

    def _row(self, step: Product | ScaledProduct | Step | str) -> list[int]:
        if isinstance(step, str):
            return [0] * ROW
        if isinstance(step, Step):
            number = next(i for i, form in enumerate(self.forms) if form.opcode == step.opcode)
            return [number + 1, step.address, *_halves(step.descriptor)] + [0] * (ROW - 4)
        if isinstance(step, ScaledProduct):
            form, words = Form(step.opcode, step.a_in_tensor_memory), (step.scale_a, step.scale_b)
        else:
            name = f"mma{'.ws' if step.weights else ''}.kind::{step.descriptor.kind}"
            form = Form(name, step.a_in_tensor_memory, bool(step.disabled), step.scale)
            words = step.disabled
        row = [self.forms.index(form) + 1, step.d_address, *_halves(step.a), *_halves(step.b)]
        row += [step.descriptor.encode(), int(step.accumulates), *words]
        return row + [0] * (ROW - len(row))

    def run(
        self, program: Program, shareds: Sequence[Bytes], memories: Sequence[Words], issuer: int = 0, **launch: Any
    ) -> list[Words]:
        """Tensor memory of each block after the program, which begins with these memories; `issuer` is a block."""
        arrays, args, options = self._launch(program, shareds, memories, issuer)
        after, _ = run_blackwell(self.source(), arrays, args, **options, **launch)
        return list(after["memory"])

    def findings(self, program: Program, shareds: Sequence[Bytes], memories: Sequence[Words]) -> tuple[Finding, ...]:
        """The sanitizer's findings about the same run."""
        arrays, args, options = self._launch(program, shareds, memories, 0)
        return find_blackwell(self.source(), arrays, args, **options)

    def _launch(
        self, program: Program, shareds: Sequence[Bytes], memories: Sequence[Words], issuer: int
    ) -> tuple[dict[str, np.ndarray], tuple[Any, ...], dict[str, Any]]:
        rows = np.array([self._row(step) for step in (*program, WAIT)], np.uint32)
        shared = np.stack(shareds)
        arrays = {"program": rows, "shared": shared, "memory": np.stack(memories)}
        sizes = np.int32(len(rows)), np.int32(shared.shape[1] // 4)
        options = {
            "grid": (self.blocks, 1, 1),
            "block": (128, 1, 1),
            "shared_bytes": shared.shape[1] + 64,
            "cluster": (2, 1, 1) if self.blocks == 2 else None,
        }
        return arrays, ("program", sizes[0], "shared", sizes[1], "memory", np.uint32(issuer)), options


def _halves(word: int) -> tuple[int, int]:
    return word & 0xFFFFFFFF, word >> 32
