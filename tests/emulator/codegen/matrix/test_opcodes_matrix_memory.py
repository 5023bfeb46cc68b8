"""ldmatrix, stmatrix and movmatrix: which lane gets which elements, from where; and what they may not do."""

from __future__ import annotations

import re

import numpy as np
import pytest
from operands import Array
from single_opcode import run_body

from harness.support.errors import KernelFault, UnsupportedInstruction

RNG = np.random.default_rng(31)
SHARED = ".shared .align 16 .b8 tile[2048];"
COUNTS = (1, 2, 4)
PLACES = [(lane >> 2, 2 * (lane & 3)) for lane in range(32)]
"""Row of a lane, and the first of its two elements (PTX ISA 9.7.14.5.15)."""


def fill(source: str = "memory") -> str:
    """2048 bytes of a buffer -> shared memory."""
    copies = [
        f"add.u64 q1, q0, {512 * i}; ld.global.v4.u32 {{r4, r5, r6, r7}}, [q1]; "
        f"st.shared.v4.u32 [r0+{512 * i}], {{r4, r5, r6, r7}};"
        for i in range(4)
    ]
    return "\n".join(
        [
            f"mad.wide.u32 q0, tid, 16, {source};",
            "mov.u32 r1, tile; mad.lo.u32 r0, tid, 16, r1;",
            *copies,
            "bar.sync 0;",
        ]
    )


def empty() -> str:
    """Shared memory -> the buffer."""
    copies = [
        f"ld.shared.v4.u32 {{r4, r5, r6, r7}}, [r0+{512 * i}]; "
        f"add.u64 q1, q0, {512 * i}; st.global.v4.u32 [q1], {{r4, r5, r6, r7}};"
        for i in range(4)
    ]
    return "\n".join(
        ["bar.sync 0;", "mad.wide.u32 q0, tid, 16, memory;", "mov.u32 r1, tile; mad.lo.u32 r0, tid, 16, r1;", *copies]
    )


def braces(first: int, count: int) -> str:
    return "{" + ", ".join(f"r{first + i}" for i in range(count)) + "}"


def row_offsets() -> Array:
    """A row of its own for each lane, in no order."""
    return (RNG.permutation(128)[:32] * 16).astype(np.uint32)


def form(opcode: str, count: int, transposed: bool, space: str = ".shared") -> str:
    return f"{opcode}.sync.aligned.m8n8.x{count}{'.trans' * transposed}{space}.b16"


def fragments(matrices: Array, transposed: bool) -> Array:
    """Matrices of 8 x 8 elements -> a register each, of 32 lanes."""
    if transposed:
        matrices = matrices.transpose(0, 2, 1)
    pairs = [[m[row, column] | m[row, column + 1] << np.uint32(16) for row, column in PLACES] for m in matrices]
    return np.array(pairs, np.uint32)


ADDRESS = "mad.wide.u32 q2, tid, 4, offsets; ld.global.u32 r2, [q2]; mov.u32 r1, tile; add.u32 r2, r2, r1;"
GENERIC = {".shared": "[r2]", ".shared::cta": "[r2]", "": "[q3]"}
TO_GENERIC = "cvt.u64.u32 q4, r2; cvta.shared.u64 q3, q4;"


@pytest.mark.parametrize("space", GENERIC)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", COUNTS)
def test_loads(count: int, transposed: bool, space: str):
    memory = RNG.integers(0, 1 << 32, 512, dtype=np.uint32)
    offsets = row_offsets()
    out = np.zeros((count, 32), np.uint32)
    # Lanes beyond the last row may have any address.
    beyond = f"setp.ge.u32 p0, tid, {8 * count}; @p0 mov.u32 r2, 0xFFFFFFF1;"
    store = "\n".join(f"st.global.u32 [q2+{128 * i}], r{8 + i};" for i in range(count))
    run_body(
        f"{fill()}{ADDRESS}{beyond}{TO_GENERIC}{form('ldmatrix', count, transposed, space)} "
        f"{braces(8, count)}, {GENERIC[space]};\nmad.wide.u32 q2, tid, 4, out;\n{store}",
        {"memory": memory, "offsets": offsets, "out": out},
        SHARED,
    )
    rows = memory.view(np.uint16).reshape(128, 8)[offsets[: 8 * count] // 16]
    np.testing.assert_array_equal(out, fragments(rows.reshape(count, 8, 8).astype(np.uint32), transposed))


@pytest.mark.parametrize("space", GENERIC)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", COUNTS)
def test_stores(count: int, transposed: bool, space: str):
    memory = RNG.integers(0, 1 << 32, 512, dtype=np.uint32)
    offsets = row_offsets()
    matrices = RNG.integers(0, 1 << 16, (count, 8, 8), dtype=np.uint32)
    registers = fragments(matrices, transposed)
    expected = memory.view(np.uint16).reshape(128, 8).copy()
    expected[offsets[: 8 * count] // 16] = matrices.reshape(-1, 8)
    load = "\n".join(f"ld.global.u32 r{8 + i}, [q2+{128 * i}];" for i in range(count))
    run_body(
        f"{fill()}{ADDRESS}{TO_GENERIC}mad.wide.u32 q2, tid, 4, values;\n{load}\n"
        f"{form('stmatrix', count, transposed, space)} {GENERIC[space]}, {braces(8, count)};\n{empty()}",
        {"memory": memory, "offsets": offsets, "values": registers},
        SHARED,
    )
    np.testing.assert_array_equal(memory.view(np.uint16).reshape(128, 8), expected)


def test_an_offset_in_the_address():
    memory, out = RNG.integers(0, 1 << 32, 512, dtype=np.uint32), np.zeros(32, np.uint32)
    run_body(
        f"{fill()}ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{r8}}, [r0+512];\n"
        "mad.wide.u32 q2, tid, 4, out; st.global.u32 [q2], r8;",
        {"memory": memory, "out": out},
        SHARED,
    )
    np.testing.assert_array_equal(out, memory[128:160])


def test_transposition_in_registers():
    matrices = RNG.integers(0, 1 << 16, (1, 8, 8), dtype=np.uint32)
    values, out = fragments(matrices, transposed=False), np.zeros((1, 32), np.uint32)
    run_body(
        "mad.wide.u32 q2, tid, 4, values; ld.global.u32 r0, [q2]; movmatrix.sync.aligned.m8n8.trans.b16 r1, r0;"
        "mad.wide.u32 q2, tid, 4, out; st.global.u32 [q2], r1;",
        {"values": values, "out": out},
    )
    np.testing.assert_array_equal(out, fragments(matrices, transposed=True))


def test_under_a_predicate_all_lanes_or_none():
    memory, out = RNG.integers(0, 1 << 32, 512, dtype=np.uint32), np.zeros((2, 32), np.uint32)
    run_body(
        f"{fill()}mov.u32 r8, 3; mov.u32 r9, 3; setp.lt.u32 p0, tid, 32;\n"
        "@p0 ldmatrix.sync.aligned.m8n8.x1.shared.b16 {r8}, [r0];\n"
        # Nobody runs it: the address does not matter.
        "@!p0 ldmatrix.sync.aligned.m8n8.x1.shared.b16 {r9}, [r0+1];\n"
        "@!p0 stmatrix.sync.aligned.m8n8.x1.shared.b16 [r0+1], {r9};\n"
        "mad.wide.u32 q2, tid, 4, out; st.global.u32 [q2], r8; st.global.u32 [q2+128], r9;",
        {"memory": memory, "out": out},
        SHARED,
    )
    np.testing.assert_array_equal(out, [memory[:32], np.full(32, 3)])


@pytest.mark.parametrize(
    ("opcode", "verb"), [("ldmatrix", "load"), ("stmatrix", "store")], ids=["ldmatrix", "stmatrix"]
)
@pytest.mark.parametrize(
    ("address", "message"),
    [
        (
            "mad.lo.u32 r2, tid, 16, 1808;",
            r"thread \(15, 0, 0\): out-of-bounds {verb} of 16 bytes at byte offset 2,048",
        ),
        ("mad.lo.u32 r2, tid, 8, 0;", r"thread \(1, 0, 0\): misaligned {verb} of 16 bytes at byte offset 8"),
    ],
)
def test_stray_rows(opcode: str, verb: str, address: str, message: str):
    with pytest.raises(KernelFault, match=message.format(verb=verb)):
        run_body(f"mov.u32 r1, tile; {address} {matrix(opcode, '[r2]')}", {}, SHARED)


def matrix(opcode: str, address: str, space: str = ".shared") -> str:
    operands = f"{{r8, r9}}, {address}" if opcode == "ldmatrix" else f"{address}, {{r8, r9}}"
    return f"{opcode}.sync.aligned.m8n8.x2{space}.b16 {operands};"


@pytest.mark.parametrize("opcode", ["ldmatrix", "stmatrix"])
def test_generic_addresses_of_other_memory(opcode: str):
    with pytest.raises(KernelFault, match=rf"buffer memory; '{opcode}.*' accesses only shared memory"):
        run_body(matrix(opcode, "[memory]", ""), {"memory": np.zeros(512, np.uint32)}, SHARED)


@pytest.mark.parametrize(
    "text",
    [
        matrix("ldmatrix", "[r0]"),
        matrix("stmatrix", "[r0]"),
        "movmatrix.sync.aligned.m8n8.trans.b16 r1, r0;",
    ],
)
def test_a_part_of_a_warp_is_a_fault(text: str):
    with pytest.raises(KernelFault, match="all lanes of warp 0 together, but lanes 16-31 do not reach it"):
        run_body(f"mov.u32 r0, tile; setp.lt.u32 p0, tid, 16; @p0 {text}", {}, SHARED)


@pytest.mark.parametrize(
    "text",
    [
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {r1, r2}, [r0];",
        "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {r1, r2}, [r0];",
        "ldmatrix.aligned.m8n8.x1.shared.b16 {r1}, [r0];",
        "ldmatrix.sync.aligned.m8n8.x1.global.b16 {r1}, [q0];",
        "stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [r0], {r1};",
        "movmatrix.sync.aligned.m8n8.b16 r1, r0;",
    ],
)
def test_other_forms_are_refused(text: str):
    with pytest.raises(UnsupportedInstruction, match=re.escape(text.split()[0])):
        run_body(text, {}, SHARED)
