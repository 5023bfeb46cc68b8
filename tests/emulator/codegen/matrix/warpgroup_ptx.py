"""PTX of products of warpgroups, and how their operands lie in shared memory, in registers and in descriptors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from operands import Array

ROWS = 64
STEP_BYTES = 32
"""Of K: what one instruction takes of each row, whatever the type."""
SWIZZLES = {0: 0, 128: 1, 64: 2, 32: 3}
"""Bytes of a row that are exchanged, and the descriptor's number of it."""


@dataclass(frozen=True)
class Product:
    """One form of `wgmma.mma_async`, in so many steps of K: y += a b, one product of a warpgroup per block."""

    types: str
    """Of D, A and B, and `.satfinite`."""
    depth: int
    """K of one instruction."""
    columns: int = 16
    from_shared: bool = True
    signs: tuple[int, int] = (1, 1)
    turned: tuple[int, int] = (0, 0)
    steps: int = 1
    adds: str = "1"
    """Whether D is added to: a number or a predicate; `odd` is set in blocks of odd number."""

    @property
    def registers(self) -> int:
        """Of D, in each thread."""
        return self.columns // (4 if self.types.startswith("f16") else 2)

    @property
    def kinds(self) -> tuple[str, str]:
        """Types of A and B."""
        _, a, b, *_ = self.types.split(".")
        return a, b

    def _flags(self) -> str:
        flags = [self.adds]
        if self.kinds[0] not in ("s8", "u8"):
            flags += map(str, self.signs)
        if self.kinds[0] in ("f16", "bf16"):
            flags += map(str, self.turned if self.from_shared else self.turned[1:])
        return ", ".join(flags)

    def _instruction(self, step: int) -> list[str]:
        d = ", ".join(f"d{i}" for i in range(self.registers))
        a = "qa" if self.from_shared else "{" + ", ".join(f"a{4 * step + i}" for i in range(4)) + "}"
        shape = f"m64n{self.columns}k{self.depth}"
        return [
            f"ld.global.b64 qa, [pd+{16 * step}]; add.u64 qa, qa, place_a;",
            f"ld.global.b64 qb, [pd+{16 * step + 8}]; add.u64 qb, qb, place_b;",
            f"wgmma.mma_async.sync.aligned.{shape}.{self.types} {{{d}}}, {a}, qb, {self._flags()};",
        ]

    def text(self) -> str:
        """The kernel: buffers a, b, y, and a descriptor of A and one of B, without addresses, for each step."""
        kind = "f32" if self.types.startswith("f32") else "b32"
        bytes_a, bytes_b = (rows * self.steps * STEP_BYTES for rows in (ROWS, self.columns))
        lines = [
            ".version 8.4\n.target sm_90a\n.address_size 64",
            ".visible .entry kernel(.param .u64 a, .param .u64 b, .param .u64 y, .param .u64 descriptors)",
            ".maxntid 128, 1, 1 {",
            f".shared .align 1024 .b8 sa[{bytes_a}]; .shared .align 1024 .b8 sb[{bytes_b}];",
            ".reg .b64 pa, pb, py, pd, place_a, place_b, qa, qb; .reg .b32 tid, block, i, s, w<4>;",
            f".reg .pred more, odd; .reg .b32 a<{4 * self.steps}>; .reg .{kind} d<{self.registers}>;",
            "ld.param.u64 pa, [a]; ld.param.u64 pb, [b]; ld.param.u64 py, [y]; ld.param.u64 pd, [descriptors];",
            "mov.u32 tid, %tid.x; mov.u32 block, %ctaid.x; and.b32 s, block, 1; setp.ne.u32 odd, s, 0;",
        ]
        lines += _copied("b", bytes_b)
        if self.from_shared:
            lines += _copied("a", bytes_a)
        else:
            words = 512 * self.steps
            lines.append(f"mad.lo.u32 i, block, {words}, tid; mad.wide.u32 pa, i, 4, pa;")
            lines += [f"ld.global.b32 a{i}, [pa+{512 * i}];" for i in range(4 * self.steps)]
        lines.append(f"mad.lo.u32 i, block, {128 * self.registers}, tid; mad.wide.u32 py, i, 4, py;")
        lines += [f"ld.global.{kind} d{i}, [py+{512 * i}];" for i in range(self.registers)]
        lines.append("fence.proxy.async.shared::cta; bar.sync 0;")
        lines += [f"mov.u64 place_{x}, s{x}; shr.u64 place_{x}, place_{x}, 4;" for x in "ab"]
        lines.append("wgmma.fence.sync.aligned;")
        for step in range(self.steps):
            lines += self._instruction(step)
        lines.append("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;")
        lines += [f"st.global.{kind} [py+{512 * i}], d{i};" for i in range(self.registers)]
        return "\n".join([*lines, "ret; }"])


def _copied(name: str, size: int) -> list[str]:
    """Each block's part of a buffer -> shared memory."""
    return [
        f"mad.wide.u32 p{name}, block, {size}, p{name}; shl.b32 i, tid, 4;",
        f"fill_{name}: setp.ge.u32 more, i, {size}; @more bra full_{name};",
        f"cvt.u64.u32 qa, i; add.u64 qa, qa, p{name}; ld.global.v4.b32 {{w0, w1, w2, w3}}, [qa];",
        f"mov.u32 s, s{name}; add.u32 s, s, i; st.shared.v4.b32 [s], {{w0, w1, w2, w3}};",
        f"add.u32 i, i, 2048; bra fill_{name};",
        f"full_{name}:",
    ]


def image(rows: Array, swizzle: int) -> Array:
    """(blocks, rows, bytes) -> how shared memory has them: as boxes of a tensor, of `swizzle` bytes to a row, or 16."""
    span = swizzle or 16
    blocks, count, size = rows.shape
    boxes = rows.reshape(blocks, count, size // span, span).transpose(0, 2, 1, 3).reshape(blocks, -1, 16)
    places = np.arange(boxes.shape[1])
    found = np.empty_like(boxes)
    found[:, places ^ ((places >> 3) & (span // 16 - 1))] = boxes
    return found.reshape(blocks, -1)


def descriptors(turned: int, swizzle: int, extent: int, depth: int, steps: int) -> list[int]:
    """One for each step of an operand with so many rows or columns, without its address (PTX ISA 9.7.15.5.1.2.2)."""
    span = swizzle or 16
    box = (depth * steps if turned else extent) * span
    if turned:
        leading, stride = (box, 8 * span) if swizzle else (8 * span, box)
        places = [depth * span * x for x in range(steps)]
    else:
        leading, stride = box, 8 * span
        places = [STEP_BYTES * x // span * box + STEP_BYTES * x % span for x in range(steps)]
    kind = SWIZZLES[swizzle] << 62 | stride >> 4 << 32 | leading >> 4 << 16
    return [kind | place >> 4 for place in places]


def registers_of_a(a: Array) -> Array:
    """(blocks, 64, bytes) -> (blocks, 4 for each step, 128 threads)."""
    words = np.ascontiguousarray(a).view(np.uint32)
    thread = np.arange(128)
    row = 16 * (thread // 32) + thread % 32 // 4
    registers = [
        words[:, row + 8 * (i % 2), thread % 4 + 8 * step + 4 * (i // 2)]
        for step in range(words.shape[2] // 8)
        for i in range(4)
    ]
    return np.stack(registers, 1)


def registers_of_d(d: Array) -> Array:
    """(blocks, 64, columns) of patterns -> (blocks, registers, 128 threads)."""
    blocks, _, columns = d.shape
    rows, places = _places(columns)
    found = d[:, rows, places].astype(np.uint32)
    if d.dtype == np.uint16:
        found = found[:, ::2] | found[:, 1::2] << np.uint32(16)
    return np.ascontiguousarray(found.reshape(blocks, -1, 128))


def matrix_of(registers: Array, half: bool) -> Array:
    """The way back."""
    blocks = len(registers)
    if half:
        registers = np.stack([registers & 0xFFFF, registers >> 16], 2).astype(np.uint16).reshape(blocks, -1, 128)
    rows, places = _places(2 * registers.shape[1])
    d = np.empty((blocks, ROWS, 2 * registers.shape[1]), registers.dtype)
    d[:, rows, places] = registers
    return d


def _places(columns: int) -> tuple[Array, Array]:
    """Row and column of what each register, or half of one, of each thread holds."""
    register, thread = np.meshgrid(np.arange(columns // 2), np.arange(128), indexing="ij")
    row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (register // 2 % 2)
    return row, 8 * (register // 4) + 2 * (thread % 4) + register % 2
