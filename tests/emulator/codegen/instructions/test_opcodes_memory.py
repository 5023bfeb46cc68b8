"""Loads and stores of every width and vector length in every space; variables, addresses and what they point to."""

from __future__ import annotations

import numpy as np
import pytest
from operands import Array
from single_opcode import HEADER, run_body, run_ptx

from harness.support.errors import KernelFault

RNG = np.random.default_rng(11)
LANES = np.arange(32)
TYPES = [f"{kind}{bits}" for bits in (8, 16, 32, 64) for kind in ("b", "u", "s")] + ["f32", "f64"]
FORMS = [(t, n) for t in TYPES for n in (1, 2, 4) if int(t[1:]) * n <= 128]
BYTES_PER_LANE = 16
DATA = RNG.integers(0, 256, 32 * BYTES_PER_LANE, dtype=np.uint8)
LOCAL = ".local .align 16 .b8 mine[16];"
SHARED = ".shared .align 16 .b8 ours[512];"


def prefix(n: int) -> str:
    return f".v{n}" if n > 1 else ""


def braces(names: list[str]) -> str:
    return "{" + ", ".join(names) + "}" if len(names) > 1 else names[0]


def as_lanes(kind: str, n: int) -> Array:
    """The data as each lane sees it: n values, extended to 64 bits by their sign where they have one."""
    bits = int(kind[1:])
    dtype = np.dtype(f"{'i' if kind[0] == 's' else 'u'}{bits // 8}")
    values = DATA.view(dtype).reshape(32, -1)[:, :n]
    return values.astype(np.int64).astype(np.uint64)


def copy_in(space: str) -> str:
    """Each lane's 16 bytes of `data` -> its own place in `space`; q1 is the address there."""
    place = {
        "global": "mul.wide.u32 q1, tid, 16; add.u64 q1, q1, data;",
        "": "mul.wide.u32 q1, tid, 16; add.u64 q1, q1, data;",
        "shared": "mul.wide.u32 q1, tid, 16; mov.u64 q2, ours; add.u64 q1, q1, q2;",
        "local": "mov.u64 q1, mine;",
        "const": "mul.wide.u32 q1, tid, 16; mov.u64 q2, table; add.u64 q1, q1, q2;",
    }[space]
    if space in ("shared", "local"):
        place += " mul.wide.u32 q3, tid, 16; add.u64 q3, q3, data; ld.global.v2.b64 {q4, q5}, [q3];"
        place += f" st.{space}.v2.b64 [q1], {{q4, q5}};"
    return place


@pytest.mark.parametrize("space", ["global", "", "shared", "local", "const"])
def test_loads_of_every_width(space: str):
    table = ", ".join(str(b) for b in DATA)
    declarations = f".const .align 16 .b8 table[512] = {{{table}}};\n" if space == "const" else ""
    dot = f".{space}" if space else ""
    out = np.zeros((len(FORMS), 32, 4), dtype=np.uint64)
    lines = [SHARED if space == "shared" else LOCAL if space == "local" else "", copy_in(space)]
    lines.append("mul.wide.u32 q20, tid, 32; add.u64 q20, q20, out;")
    for index, (kind, n) in enumerate(FORMS):
        registers = ["q10", "q11", "q12", "q13"][:n]
        lines.append(f"ld{dot}{prefix(n)}.{kind} {braces(registers)}, [q1];")
        lines += [f"st.global.u64 [q20+{1024 * index + 8 * i}], {r};" for i, r in enumerate(registers)]
    run_body("\n".join(lines), {"data": DATA.copy(), "out": out}, declarations)
    for index, (kind, n) in enumerate(FORMS):
        np.testing.assert_array_equal(out[index, :, :n], as_lanes(kind, n), err_msg=f"ld.{space}.v{n}.{kind}")


@pytest.mark.parametrize("where", ["each its own", "all the last"])
def test_shared_loads_of_some_lanes(where: str):
    """Of every width; what inactive lanes have for an address is of no account."""
    active = (LANES % 3 > 0) & (LANES > 1)
    out = np.zeros((len(FORMS), 32, 4), dtype=np.uint64)
    lines = [SHARED, copy_in("shared"), "mul.wide.u32 q20, tid, 32; add.u64 q20, q20, out; cvt.u32.u64 r1, q1;"]
    if where == "all the last":
        lines.append("bar.sync 0; mov.u32 r1, ours; add.u32 r1, r1, 496;")
    lines.append(
        "rem.u32 r2, tid, 3; setp.gt.u32 p0, r2, 0; setp.gt.and.u32 p0, tid, 1, p0; @!p0 mov.u32 r1, 0xFFFFFF03;"
    )
    for index, (kind, n) in enumerate(FORMS):
        registers = ["q10", "q11", "q12", "q13"][:n]
        lines += [f"mov.u64 {register}, 0;" for register in registers]
        lines.append(f"@p0 ld.shared{prefix(n)}.{kind} {braces(registers)}, [r1];")
        lines += [f"st.global.u64 [q20+{1024 * index + 8 * i}], {r};" for i, r in enumerate(registers)]
    run_body("\n".join(lines), {"data": DATA.copy(), "out": out})
    for index, (kind, n) in enumerate(FORMS):
        read = as_lanes(kind, n) if where == "each its own" else np.broadcast_to(as_lanes(kind, n)[31], (32, n))
        np.testing.assert_array_equal(out[index, :, :n], np.where(active[:, None], read, 0), err_msg=f"v{n}.{kind}")


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("form", [("u8", 1), ("b16", 1), ("f32", 1), ("b64", 1), ("b32", 2), ("f32", 4), ("b16", 4)])
def test_stray_shared_loads(form: tuple[str, int], apart: bool):
    """The first byte behind the memory, the last that an address may name, and the middle of an element."""
    kind, n = form
    size = int(kind[1:]) // 8 * n
    registers = [f"{'f' if kind == 'f32' else 'q'}{10 + i}" for i in range(n)]
    for offset, fault in ((512, "out of bounds"), (2**32 - size, "out of bounds"), (size // 2, "misaligned")):
        if not offset:
            continue  # of one byte, nothing is in the middle
        lines = [SHARED, ".reg .f32 f<16>;", "mov.u32 r1, ours;", f"add.u32 r2, r1, {offset};"]
        if apart:
            lines.append("setp.ne.u32 p0, tid, 17; @p0 mov.u32 r2, r1;")
        lines.append(f"ld.shared{prefix(n)}.{kind} {braces(registers)}, [r2];")
        with pytest.raises(KernelFault, match=rf"thread \({17 if apart else 0}, 0, 0\)") as found:
            run_body("\n".join(lines), {"data": DATA.copy()})
        assert found.value.kind == fault


@pytest.mark.parametrize("space", ["global", "", "shared", "local"])
def test_stores_of_every_width(space: str):
    dot = f".{space}" if space else ""
    forms = [(t, n) for t, n in FORMS if t[0] == "b"]
    out = np.zeros((len(forms), 32, BYTES_PER_LANE), dtype=np.uint8)
    lines = [SHARED if space == "shared" else LOCAL if space == "local" else ""]
    lines.append(copy_in(space).replace("data;", "scratch;"))
    lines.append(
        "mul.wide.u32 q20, tid, 16; add.u64 q20, q20, out; mul.wide.u32 q21, tid, 32; add.u64 q21, q21, words;"
    )
    lines += [f"ld.global.u64 q{10 + i}, [q21+{8 * i}];" for i in range(4)]
    if space in ("global", ""):
        lines.append("mul.wide.u32 q1, tid, 16; add.u64 q1, q1, scratch;")
    for index, (kind, n) in enumerate(forms):
        registers = ["q10", "q11", "q12", "q13"][:n]
        lines.append(f"mov.b64 q15, 0; st{dot}.v2.b64 [q1], {{q15, q15}};")
        lines.append(f"st{dot}{prefix(n)}.{kind} [q1], {braces(registers)};")
        lines.append(f"ld{dot}.v2.b64 {{q16, q17}}, [q1]; st.global.v2.b64 [q20+{512 * index}], {{q16, q17}};")
    words = RNG.integers(0, 1 << 64, (32, 4), dtype=np.uint64)
    run_body("\n".join(lines), {"scratch": np.zeros(512, np.uint8), "out": out, "words": words})
    for index, (kind, n) in enumerate(forms):
        size = int(kind[1:]) // 8
        expected = np.zeros((32, BYTES_PER_LANE), dtype=np.uint8)
        expected[:, : n * size] = words.view(np.uint8).reshape(32, 4, 8)[:, :n, :size].reshape(32, -1)
        np.testing.assert_array_equal(out[index], expected, err_msg=f"st.{space}.v{n}.{kind}")


def test_values_keep_their_width_in_narrow_registers():
    """s8 into 16 and 32 bits, and literals and sinks among the items."""
    out = np.zeros((32, 4), dtype=np.uint32)
    run_body(
        """
        mul.wide.u32 q1, tid, 16; add.u64 q2, q1, out; add.u64 q1, q1, data;
        ld.global.s8 h1, [q1]; cvt.u32.u16 r1, h1;
        ld.global.s8 r2, [q1+1];
        ld.global.v4.u8 {_, _, h2, _}, [q1]; cvt.u32.u16 r3, h2;
        st.global.v4.b32 [q2], {r1, r2, r3, 0f3F800000};
        """,
        {"data": DATA.copy(), "out": out},
    )
    lanes = DATA.reshape(32, 16)
    np.testing.assert_array_equal(out[:, 0], lanes[:, 0].view(np.int8).astype(np.int16).view(np.uint16))
    np.testing.assert_array_equal(out[:, 1], lanes[:, 1].view(np.int8).astype(np.int32).view(np.uint32))
    np.testing.assert_array_equal(out[:, 2], lanes[:, 2])
    assert (out[:, 3] == 0x3F800000).all()


def test_accesses_of_32_bytes():
    """One sector for each lane, of sm_100."""
    data, out = RNG.integers(0, 1 << 32, (32, 8), dtype=np.uint32), np.zeros((2, 32, 8), dtype=np.uint32)
    run_body(
        """
        mul.wide.u32 q1, tid, 32; add.u64 q2, q1, out; add.u64 q1, q1, data;
        ld.global.v8.b32 {r1, r2, r3, r4, r5, r6, r7, r8}, [q1];
        st.global.v4.b32 [q2], {r5, r6, r7, r8}; st.global.v4.b32 [q2+16], {r1, r2, r3, r4};
        ld.global.v4.b64 {q3, q4, q5, q6}, [q1];
        st.global.v4.b64 [q2+1024], {q6, q5, q4, q3};
        """,
        {"data": data, "out": out},
    )
    np.testing.assert_array_equal(out[0], np.roll(data, 4, axis=1))
    np.testing.assert_array_equal(out[1].view(np.uint64), data.view(np.uint64)[:, ::-1])


def test_shared_loads_from_one_address_and_from_many():
    """The short way for one address, and the long one, on vectors; under a predicate only some lanes look."""
    out = np.full((4, 32, 2), 7, dtype=np.uint32)
    run_body(
        f"""{SHARED}
        {copy_in("shared")} bar.sync 0;
        mul.wide.u32 q20, tid, 8; add.u64 q20, q20, out;
        ld.shared.v2.u32 {{r1, r2}}, [ours+24]; st.global.v2.b32 [q20], {{r1, r2}};
        xor.b32 r5, tid, 13; shl.b32 r5, r5, 4; mov.u32 r6, ours; add.u32 r6, r6, r5;
        ld.shared.v2.u32 {{r1, r2}}, [r6+8]; st.global.v2.b32 [q20+256], {{r1, r2}};
        setp.gt.u32 p1, tid, 20; mov.b32 r1, 1; mov.b32 r2, 2;
        @p1 ld.shared.v2.u32 {{r1, r2}}, [ours+40]; st.global.v2.b32 [q20+512], {{r1, r2}};
        setp.gt.u32 p2, tid, 99; mov.b32 r1, 3; mov.b32 r2, 4;
        @p2 ld.shared.v2.u32 {{r1, r2}}, [r6]; st.global.v2.b32 [q20+768], {{r1, r2}};
        """,
        {"data": DATA.copy(), "out": out},
    )
    words = DATA.view(np.uint32)
    lane = np.arange(32)
    np.testing.assert_array_equal(out[0], np.broadcast_to(words[6:8], (32, 2)))
    np.testing.assert_array_equal(out[1], words.reshape(32, 4)[lane ^ 13, 2:])
    np.testing.assert_array_equal(out[2], np.where(lane[:, None] > 20, words[10:12], [1, 2]))
    np.testing.assert_array_equal(out[3], np.broadcast_to([3, 4], (32, 2)))


def test_local_arrays_with_indices_of_every_lane():
    """32 private words: each lane writes them in its own order, and reads another one."""
    out = np.zeros((2, 32), dtype=np.uint32)
    run_body(
        """
        .local .align 4 .b8 mine[128];
        mov.u64 q1, mine; cvta.local.u64 q2, q1;
        mov.b32 r1, 0;
        AGAIN:
        xor.b32 r2, r1, tid; mul.wide.u32 q3, r2, 4; add.u64 q4, q1, q3;
        mad.lo.u32 r3, tid, 100, r1; st.local.u32 [q4], r3;
        add.u32 r1, r1, 1; setp.lt.u32 p1, r1, 32; @p1 bra AGAIN;
        mul.wide.u32 q5, tid, 4; add.u64 q6, q2, q5; ld.u32 r4, [q6];
        sub.u32 r5, 31, tid; mul.wide.u32 q7, r5, 4; add.u64 q7, q1, q7; ld.local.u32 r6, [q7];
        add.u64 q8, q5, out; st.global.u32 [q8], r4; st.global.u32 [q8+128], r6;
        """,
        {"out": out},
    )
    lane = np.arange(32, dtype=np.uint32)
    np.testing.assert_array_equal(out[0], lane * 100)
    np.testing.assert_array_equal(out[1], lane * 100 + ((31 - lane) ^ lane))


def test_variables_have_their_initial_values():
    declarations = """
    .const .align 4 .f32 halves[4] = {0f3F000000, 0f3FC00000, 2.5};
    .global .align 8 .u64 wide[2] = {0x1122334455667788, -2};
    .visible .global .align 4 .u32 matrix[2][3] = {{1, 2}, {3}};
    .global .s16 small = -3;
    .global .f64 number = 0d4000000000000000;
    .const .v4 .f32 vector = {1.0, -2.0, 0f40400000, 0d4010000000000000};
    .global .align 4 .b8 nothing[8];
    """
    out = np.zeros(64, dtype=np.uint32)
    body = ["setp.ne.u32 p1, tid, 0; @p1 ret;"]
    for index in range(4):
        body.append(f"ld.const.u32 r1, [halves+{4 * index}]; st.global.u32 [out+{4 * index}], r1;")
        body.append(f"ld.global.u32 r1, [wide+{4 * index}]; st.global.u32 [out+{16 + 4 * index}], r1;")
        body.append(f"ld.const.u32 r1, [vector+{4 * index}]; st.global.u32 [out+{32 + 4 * index}], r1;")
    for index in range(6):
        body.append(
            f"mov.u64 q1, matrix+{4 * index}; ld.global.u32 r1, [q1]; st.global.u32 [out+{48 + 4 * index}], r1;"
        )
    body.append("ld.global.s16 r1, [small]; st.global.u32 [out+72], r1;")
    body.append("cvta.global.u64 q1, number; ld.u64 q2, [q1]; st.global.u64 [out+80], q2;")
    body.append("ld.global.u64 q2, [nothing]; st.global.u64 [out+88], q2;")
    run_body("\n".join(body), {"out": out}, declarations)
    np.testing.assert_array_equal(out[:4].view(np.float32), [0.5, 1.5, 2.5, 0])
    assert out[4:8].view(np.uint64).tolist() == [0x1122334455667788, 2**64 - 2]
    np.testing.assert_array_equal(out[8:12].view(np.float32), [1, -2, 3, 4])
    assert out[12:18].tolist() == [1, 2, 3, 0, 0, 0]
    assert out[18] == 2**32 - 3
    assert out[20:22].view(np.float64)[0] == 2.0
    assert out[22:24].tolist() == [0, 0]


def test_variables_are_aligned_as_their_type_is():
    """A vector behind a byte, in shared and in local memory: its store would be misaligned otherwise."""
    out = np.zeros((32, 2), dtype=np.float32)
    run_body(
        """
        .shared .b8 a; .shared .v4 .f32 b; .shared .b8 c; .shared .v2 .b16 d; .local .b8 e; .local .v2 .f64 f;
        mul.wide.u32 q1, tid, 8; add.u64 q1, q1, out; cvt.rn.f32.u32 r1, tid; cvt.rn.f64.u32 q2, tid;
        st.local.v2.f64 [f], {q2, q2}; ld.local.f64 q3, [f+8]; cvt.rn.f32.f64 r2, q3;
        st.shared.v4.f32 [b], {r1, r1, 0f40A00000, r1}; st.shared.v2.b16 [d], {1, 2}; ld.shared.f32 r3, [b+8];
        st.global.v2.f32 [q1], {r2, r3};
        """,
        {"out": out},
    )
    np.testing.assert_array_equal(out, np.stack([np.arange(32), np.full(32, 5)], axis=1))


def test_a_global_variable_is_one_for_all_blocks():
    out = np.zeros(8, dtype=np.uint32)
    run_body(
        """
        setp.ne.u32 p1, tid, 0; @p1 ret;
        atom.global.add.u32 r1, [counter], 1;
        mov.u32 r2, %ctaid.x; mul.wide.u32 q1, r2, 4; add.u64 q1, q1, out; st.global.u32 [q1], r1;
        """,
        {"out": out},
        ".global .u32 counter = 100;",
        grid=8,
    )
    assert sorted(out.tolist()) == list(range(100, 108))


def test_spaces_of_generic_addresses():
    """cvta there and back, and isspacep for every space; a parameter counts as global, a constant does not."""
    spaces = ("global", "shared", "local", "const", "param")
    out = np.zeros((6, 8), dtype=np.uint32)
    body = [
        ".shared .align 4 .b32 ours; .local .align 4 .b32 mine;",
        "setp.ne.u32 p1, tid, 0; @p1 ret;",
        "mov.u64 q1, thing; cvta.global.u64 q11, q1; mov.u64 q12, out;",
        "mov.u64 q3, ours; cvta.shared.u64 q13, q3; mov.u64 q4, mine; cvta.local.u64 q14, q4;",
        "cvta.const.u64 q15, fixed; mov.b64 q6, out_0; cvta.param.u64 q16, q6;",
        "st.global.u32 [thing], 11; st.shared.u32 [ours], 13; st.local.u32 [mine], 14;",
    ]
    for row, register in enumerate(("q11", "q12", "q13", "q14", "q15", "q16")):
        for column, space in enumerate(spaces):
            body.append(f"isspacep.{space} p1, {register}; selp.u32 r1, 1, 0, p1;")
            body.append(f"st.global.u32 [out+{32 * row + 4 * column}], r1;")
    for row, (space, register) in enumerate((("global", "q11"), ("shared", "q13"), ("local", "q14"), ("const", "q15"))):
        body.append(f"ld.u32 r1, [{register}]; st.global.u32 [out+{32 * row + 20}], r1;")
        body.append(f"cvta.to.{space}.u64 q20, {register}; ld.{space}.u32 r1, [q20];")
        body.append(f"st.global.u32 [out+{32 * row + 24}], r1;")
    body.append("ld.u64 q21, [q16]; setp.eq.u64 p1, q21, out; selp.u32 r1, 1, 0, p1; st.global.u32 [out+28], r1;")
    run_body("\n".join(body), {"out": out}, ".global .u32 thing; .const .u32 fixed = 15;")
    assert out[:, :5].tolist() == [
        [1, 0, 0, 0, 0],
        [1, 0, 0, 0, 0],
        [0, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 0, 1, 0],
        [1, 0, 0, 0, 1],
    ]
    assert out[:4, 5].tolist() == out[:4, 6].tolist() == [11, 13, 14, 15]
    assert out[0, 7] == 1


def test_parameters_by_addresses_of_32_bits():
    """An address in parameter space is an offset; cvta.param makes it a generic one, and cvta.to.param undoes that."""
    out = np.zeros(4, dtype=np.uint64)
    run_body(
        """
        setp.ne.u32 p1, tid, 0; @p1 ret;
        mov.b32 r1, out_0; cvt.u64.u32 q1, r1; cvta.param.u64 q2, q1; ld.u64 q3, [q2]; st.global.u64 [out], q3;
        ld.param.u64 q4, [q1]; st.global.u64 [out+8], q4; ld.param.u64 q4, [r1]; st.global.u64 [out+16], q4;
        mov.b64 q5, out_0; cvta.param.u64 q5, q5; cvta.to.param.u64 q6, q5; ld.param.u64 q7, [q6];
        st.global.u64 [out+24], q7;
        """,
        {"out": out},
    )
    assert out[0] and (out == out[0]).all()


TO_CONSTANT = "cvta.const.u64 q1, fixed; add.u64 q1, q1, 4; "
TO_PARAMETER = "mov.b64 q1, out_0; cvta.param.u64 q1, q1; "


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TO_CONSTANT + "st.u32 [q1], 5;", "store of 4 bytes at byte offset 4 of variable fixed, which is constant"),
        (TO_CONSTANT + "st.global.u32 [q1], 5;", "store of 4 bytes at byte offset 4 of variable fixed"),
        (TO_CONSTANT + "atom.add.u32 r1, [q1], 5;", "atomic of 4 bytes at byte offset 4 of variable fixed"),
        (TO_CONSTANT + "red.global.add.u32 [q1], 5;", "atomic of 4 bytes at byte offset 4 of variable fixed"),
        (
            "setp.eq.u32 p1, tid, 9; mov.b64 q1, out; @!p1 bra DONE; " + TO_CONSTANT + "DONE: st.v2.u32 [q1], {1, 2};",
            r"thread \(9, 0, 0\): store of 8 bytes at byte offset 4 of variable fixed",
        ),
        (TO_PARAMETER + "st.u32 [q1], 5;", "store of 4 bytes at a parameter of the kernel; kernels may only read it"),
    ],
)
def test_a_store_into_constant_memory_is_a_fault(text: str, words: str):
    with pytest.raises(KernelFault, match=words) as caught:
        run_body(text, {"out": np.zeros(4, np.uint64)}, ".global .u32 first; .const .align 8 .u32 fixed[3] = {1};")
    assert caught.value.kind == "read-only memory"


def test_hints_change_nothing():
    out = np.zeros(11, dtype=np.uint32)
    loads = ("ca", "cg", "cs", "lu", "cv", "nc", "nc.L1::no_allocate.L2::128B", "L1::evict_last", "L2::256B")
    loads += ("ldu",)
    body = ["setp.ne.u32 p1, tid, 0; @p1 ret;"]
    for index, hint in enumerate(loads):
        # `.volatile`, `.relaxed` and their like come before the space, cache operators behind it.
        load = "ldu.global" if hint == "ldu" else f"ld.global.{hint}"
        body.append(f"{load}.u32 r1, [data+{4 * index}]; st.global.wt.u32 [out+{4 * index}], r1;")
    body.append("createpolicy.fractional.L2::evict_first.b64 q1, 1.0;")
    # An access property as CUDA's headers have it. A GPU stops at what is none, or no policy.
    body.append("mov.b64 q2, 0x12F0000000000000; createpolicy.cvt.L2.b64 q2, q2;")
    body.append("createpolicy.range.global.L2::evict_last.L2::evict_unchanged.b64 q3, [data], 16, 32;")
    body.append("ld.global.L2::cache_hint.u32 r1, [data+4], q2; st.global.L2::cache_hint.u32 [out+4], r1, q1;")
    body.append("ld.global.L2::cache_hint.u32 r1, [data+8], q3; st.global.L2::cache_hint.u32 [out+8], r1, q1;")
    body.append("ld.relaxed.gpu.global.u32 r1, [data]; ld.acquire.sys.global.u32 r2, [data+4];")
    body.append("ld.volatile.global.u32 r3, [data];")
    body.append("xor.b32 r1, r1, r3; add.u32 r1, r1, r2; st.release.gpu.global.u32 [out+40], r1;")
    run_body("\n".join(body), {"data": DATA.copy(), "out": out})
    np.testing.assert_array_equal(out, [*DATA.view(np.uint32)[:10], DATA.view(np.uint32)[1]])


def test_parameters_of_the_kernel():
    """Scalars of every width, a structure by value read in pieces, and through its address by what a lane chooses."""
    text = f"""{HEADER}
    .visible .entry kernel(.param .u64 .ptr .global .align 8 out, .param .u8 small, .param .s16 middle,
                           .param .f64 wide, .param .align 16 .b8 many[48]) {{
        .reg .b32 t, r<9>; .reg .b64 q<9>; .reg .pred p;
        mov.u32 t, %tid.x; ld.param.u64 q1, [out]; mul.wide.u32 q2, t, 40; add.u64 q1, q1, q2;
        ld.param.u8 r1, [small]; ld.param.s16 r2, [middle]; ld.param.b64 q3, [wide];
        st.global.v2.b32 [q1], {{r1, r2}}; st.global.b64 [q1+8], q3;
        ld.param.v4.b32 {{r3, r4, r5, r6}}, [many+16]; st.global.v2.b32 [q1+16], {{r3, r6}};
        mov.b64 q4, many; rem.u32 r7, t, 12; mul.wide.u32 q5, r7, 4; add.u64 q5, q5, q4; ld.param.u32 r8, [q5];
        st.global.b32 [q1+24], r8; cvta.param.u64 q6, q4; ld.s8 r8, [q6+47]; st.global.b32 [q1+28], r8;
        isspacep.param p, q6; selp.u32 r8, 1, 0, p; st.global.b32 [q1+32], r8;
        ret;
    }}"""
    out = np.zeros((32, 10), dtype=np.uint32)
    many = RNG.integers(0, 256, 48, dtype=np.uint8)
    scalars = (b"\xfe", (-5).to_bytes(2, "little", signed=True), np.float64(2.5).tobytes(), many.tobytes())
    run_ptx(text, {"out": out}, scalars=scalars)
    words = many.view(np.uint32)
    lane = np.arange(32)
    assert set(out[:, 0].tolist()) == {0xFE} and set(out[:, 1].tolist()) == {2**32 - 5}
    assert (np.ascontiguousarray(out[:, 2:4]).view(np.float64) == 2.5).all()
    np.testing.assert_array_equal(out[:, 4:6], np.broadcast_to(words[[4, 7]], (32, 2)))
    np.testing.assert_array_equal(out[:, 6], words[lane % 12])
    assert set(out[:, 7].tolist()) == {int(many[47].astype(np.int8)) % 2**32}
    assert (out[:, 8] == 1).all()
