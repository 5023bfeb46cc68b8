"""atom and red: every operation and type in every space, lane after lane, on shared and on separate words."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from exact_floats import BF16, F16, F32, F64, Format, each_float, through_pairs
from operands import UNSIGNED, Array, floats_near_one, integers, signed
from single_opcode import run_body

from harness.support.errors import UnsupportedInstruction

Model = Callable[..., int]


def in_format(form: Format) -> Model:
    def add(old: int, value: int) -> int:
        total = form.add(old, value)
        return form.sign_bit - 1 if total is None else total

    return add


def increment(old: int, limit: int) -> int:
    return 0 if old >= limit else old + 1


def decrement(old: int, limit: int) -> int:
    return limit if old == 0 or old > limit else old - 1


FORMS: dict[str, tuple[int, Model]] = {
    "exch.b32": (32, lambda old, value: value),
    "exch.b64": (64, lambda old, value: value),
    "cas.b16": (16, lambda old, compare, value: value if old == compare else old),
    "cas.b32": (32, lambda old, compare, value: value if old == compare else old),
    "cas.b64": (64, lambda old, compare, value: value if old == compare else old),
    "inc.u32": (32, increment),
    "dec.u32": (32, decrement),
    "add.f32": (32, in_format(F32)),
    "add.f64": (64, in_format(F64)),
    "add.noftz.f16": (16, in_format(F16)),
    "add.noftz.bf16": (16, in_format(BF16)),
    "add.noftz.f16x2": (32, through_pairs(in_format(F16))),
    "add.noftz.bf16x2": (32, through_pairs(in_format(BF16))),
}
for kind in ("u32", "s32", "u64", "s64"):
    bits = int(kind[1:])
    value = (lambda x, bits=bits: signed(x, bits)) if kind[0] == "s" else (lambda x: x)
    if kind != "s64":
        FORMS[f"add.{kind}"] = (bits, lambda old, x: old + x)
    FORMS[f"min.{kind}"] = (bits, lambda old, x, value=value: min(old, x, key=value))
    FORMS[f"max.{kind}"] = (bits, lambda old, x, value=value: max(old, x, key=value))
for bits in (32, 64):
    FORMS[f"and.b{bits}"] = (bits, lambda old, x: old & x)
    FORMS[f"or.b{bits}"] = (bits, lambda old, x: old | x)
    FORMS[f"xor.b{bits}"] = (bits, lambda old, x: old ^ x)


def test_a_cache_policy_changes_nothing():
    y = np.array([3, 5], np.uint32)
    text = """setp.ne.u32 p0, tid, 0; @p0 bra out;
      createpolicy.fractional.L2::evict_last.b64 q1;
      atom.global.add.L2::cache_hint.u32 r1, [y], 4, q1;
      red.relaxed.gpu.global.add.L2::cache_hint.u32 [y+4], r1, q1;
      atom.global.exch.L2::cache_hint.b32 r1, [y], 9, q1; out:"""
    run_body(text, {"y": y})
    assert y.tolist() == [9, 8]
    with pytest.raises(UnsupportedInstruction, match="cas"):
        run_body("atom.global.cas.L2::cache_hint.b32 r1, [y], 7, 9, q1;", {"y": y})


def operands_of(name: str, bits: int) -> tuple[Array, Array]:
    """What a lane holds: its value, and for cas what it compares with; values meet often enough."""
    last = name.rsplit(".", 1)[-1]
    if last.endswith("x2"):
        low, high = (floats_near_one(last[:-2], 1, 32, seed)[0].astype(np.uint32) for seed in (1, 2))
        return low | high << np.uint32(16), low
    if last[0] == "f" or last.startswith("bf"):
        (values,) = floats_near_one(last, 1, 32)
        return values, values
    if name.startswith(("inc", "dec")):
        return np.resize(np.array([3, 5, 2], dtype=np.uint32), 32), np.zeros(32, np.uint32)
    if name.startswith("cas"):
        lane = np.arange(32).astype(UNSIGNED[bits])
        return lane * UNSIGNED[bits](7), np.where(lane % 3 == 0, 0, (lane - 1) * 7).astype(UNSIGNED[bits])
    (values,) = integers(bits, 1, edges=14, random=18)
    return values, values


PLACES = np.array([lane % 5 for lane in range(32)])
"""Which of five words a lane works on."""


def one_by_one(model: Model, start: Array, lanes: list[int], *operands: Array) -> tuple[Array, Array]:
    """What each lane finds, and what the words hold in the end."""
    mask = (1 << (8 * start.dtype.itemsize)) - 1
    words = start.tolist()
    found = [0] * 32
    for lane in lanes:
        place = PLACES[lane]
        found[lane] = words[place]
        words[place] = model(words[place], *(int(o[lane]) for o in operands)) & mask
    return np.array(found, dtype=start.dtype), np.array(words, dtype=start.dtype)


@pytest.mark.parametrize("space", ["global", "shared", ""])
def test_every_operation(space: str):
    """Lanes 3 to 31 with atom, then all lanes with red, on five words that several lanes share."""
    dot = f".{space}" if space else ""
    total = len(FORMS)
    values, compares = np.zeros((total, 32), np.uint64), np.zeros((total, 32), np.uint64)
    words, found = np.zeros((total, 5), np.uint64), np.zeros((total, 32), np.uint64)
    body = [
        ".shared .align 8 .b64 ours[5];",
        "setp.gt.u32 p1, tid, 2; rem.u32 r1, tid, 5; mul.wide.u32 q9, r1, 8;",
        "mul.wide.u32 q8, tid, 8; add.u64 q4, q8, values; add.u64 q5, q8, compares; add.u64 q6, q8, found;",
        "setp.lt.u32 p2, tid, 5;",
    ]
    expected = []
    for index, (name, (bits, model)) in enumerate(FORMS.items()):
        value, compare = operands_of(name, bits)
        start = value[:5].copy() if not name.startswith("cas") else np.zeros(5, value.dtype)
        values[index], compares[index] = value, compare
        words[index].view(start.dtype)[:: 8 // start.dtype.itemsize] = start
        operands = (compare, value) if name.startswith("cas") else (value,)
        old, after = one_by_one(model, start, list(range(3, 32)), *operands)
        has_red = not name.startswith(("cas", "exch"))
        if has_red:
            _, after = one_by_one(model, after, list(range(32)), *operands)
        expected.append((name, old, after))
        register = {16: "h", 32: "r", 64: "q"}[bits]
        a, b, old_value = f"{register}10", f"{register}11", f"{register}12"
        body.append(f"ld.global.b{bits} {a}, [q4+{256 * index}]; ld.global.b{bits} {b}, [q5+{256 * index}];")
        body.append(f"mov.b{bits} {old_value}, 0; add.u64 q1, q9, words; add.u64 q1, q1, {40 * index};")
        if space == "shared":
            body.append("ld.global.b64 q2, [q1]; mov.u64 q3, ours; add.u64 q3, q3, q9;")
            body.append("@p2 st.shared.b64 [q3], q2; bar.warp.sync -1;")
        place = "q3" if space == "shared" else "q1"
        sources = f"{b}, {a}" if name.startswith("cas") else a
        body.append(f"@p1 atom{dot}.{name} {old_value}, [{place}], {sources};")
        if has_red:
            body.append(f"red{dot}.{name} [{place}], {a};")
        if space == "shared":
            body.append("bar.warp.sync -1; ld.shared.b64 q2, [q3]; @p2 st.global.b64 [q1], q2; bar.warp.sync -1;")
        body.append(f"st.global.b{bits} [q6+{256 * index}], {old_value};")
    run_body("\n".join(body), {"values": values, "compares": compares, "words": words, "found": found})
    for index, (name, old, after) in enumerate(expected):
        step = 8 // old.dtype.itemsize
        np.testing.assert_array_equal(found[index].view(old.dtype)[::step], old, err_msg=f"atom{dot}.{name}")
        np.testing.assert_array_equal(words[index].view(old.dtype)[::step], after, err_msg=f"words of {dot}.{name}")


@pytest.mark.parametrize(("space", "place"), [("global", "q3"), ("shared", "q4"), ("", "q3"), ("", "q5")])
def test_floats_on_global_memory_are_flushed(space: str, place: str):
    """atom.add.f32 takes and leaves no subnormals there; on shared memory it does, by generic addresses as well."""
    values = np.array([1, 0x400000, 0x80000001, 0x800000, 0x80400000, 0x3F800000, 0x80800000, 0x7FFFFF] * 4, np.uint32)
    words = np.array([0x400000, 1 << 31, 1, 0x80800001, 0x7FFFFF, 0x800001, 0, 0x3F800001] * 4, np.uint32)
    found = np.zeros((2, 32), np.uint32)
    run_body(
        f"""
        .shared .b32 ours[32]; mov.u64 q2, ours; mul.wide.u32 q1, tid, 4; add.u64 q3, q1, words; add.u64 q4, q1, q2;
        cvta.shared.u64 q5, q4; add.u64 q6, q1, values; add.u64 q7, q1, found;
        ld.global.b32 r1, [q3]; st.shared.b32 [q4], r1; ld.global.b32 r2, [q6];
        atom{"." * bool(space)}{space}.add.f32 r3, [{place}], r2; st.global.b32 [q7], r3;
        ld{"." * bool(space)}{space}.b32 r4, [{place}]; st.global.b32 [q7+128], r4;
        """,
        {"values": values, "words": words.copy(), "found": found},
    )
    flush = F32.flushed if place == "q3" else lambda p: p
    expected = each_float(F32, lambda p, q: flush(F32.add(flush(p), flush(q)) or 0), words, values)
    np.testing.assert_array_equal(found[1], expected)


@pytest.mark.parametrize(
    ("name", "form"), [("add.v2.f32", F32), ("add.v4.f32", F32), ("add.noftz.v8.bf16", BF16), ("add.noftz.v4.f16", F16)]
)
def test_each_element_of_a_vector_is_added_to(name: str, form: Format):
    """Lanes 3 to 31 with atom, then all lanes with red, on three vectors that several lanes share."""
    *_, vector, kind = name.split(".")
    count, bits = int(vector[1:]), int(kind[-2:])
    size, register = bits // 8, {16: "h", 32: "r"}[bits]
    values = np.resize(floats_near_one(kind, 1, 32)[0], 32 * count).reshape(32, count)
    start, places = values[5:8].copy(), np.arange(32) % 3
    words, found = start.copy(), np.zeros((32, count), values.dtype)
    registers = [f"{register}{5 + i}" for i in range(count)]
    addends = ", ".join(registers)
    body = [
        f"mul.wide.u32 q1, tid, {size * count}; add.u64 q2, q1, values; add.u64 q3, q1, found;",
        f"rem.u32 r1, tid, 3; mul.wide.u32 q4, r1, {size * count}; add.u64 q4, q4, words; setp.gt.u32 p1, tid, 2;",
        *(f"ld.global.b{bits} {r}, [q2+{size * i}];" for i, r in enumerate(registers)),
        f"@p1 atom.global.{name} {{{addends}}}, [q4], {{{addends}}};",
        *(f"@p1 st.global.b{bits} [q3+{size * i}], {r};" for i, r in enumerate(registers)),
        *(f"ld.global.b{bits} {r}, [q2+{size * i}];" for i, r in enumerate(registers)),
        f"red.relaxed.gpu.global.{name} [q4], {{{addends}}};",
    ]
    run_body("\n".join(body), {"values": values, "words": words, "found": found})
    add = in_format(form)
    expected, olds = start.astype(np.int64), np.zeros_like(found)
    for turn, lanes in enumerate((range(3, 32), range(32))):
        for lane in lanes:
            if turn == 0:
                olds[lane] = expected[places[lane]]
            for i in range(count):
                expected[places[lane], i] = add(int(expected[places[lane], i]), int(values[lane, i]))
    np.testing.assert_array_equal(found, olds)
    np.testing.assert_array_equal(words, expected)


def test_scopes_orders_and_sinks():
    words = np.zeros(4, dtype=np.uint32)
    run_body(
        """
        atom.relaxed.gpu.global.add.u32 _, [words], 1;
        atom.acq_rel.sys.add.u32 r1, [words+4], 2;
        red.release.cta.global.add.u32 [words+8], 3;
        atom.acquire.cluster.global.max.s32 r1, [words+12], -5;
        """,
        {"words": words},
    )
    assert words.tolist() == [32, 64, 96, 0]


def test_a_loop_of_compare_and_swap_loses_nothing():
    """All lanes of four warps of three blocks add to one float through its bits."""
    total = np.zeros(1, dtype=np.float32)
    run_body(
        """
        cvt.rn.f32.u32 r1, tid;
        ld.global.b32 r2, [total];
        AGAIN:
        add.rn.f32 r3, r2, r1;
        atom.global.cas.b32 r4, [total], r2, r3;
        setp.ne.b32 p1, r4, r2; mov.b32 r2, r4;
        @p1 bra AGAIN;
        """,
        {"total": total},
        grid=3,
        block=128,
    )
    assert total[0] == 3 * sum(range(128))


def test_counters_on_shared_memory_from_many_warps():
    counts = np.zeros(8, dtype=np.uint32)
    run_body(
        """
        .shared .b32 bins[8];
        setp.lt.u32 p1, tid, 8; and.b32 r1, tid, 7; shl.b32 r1, r1, 2; mov.u32 r2, bins; add.u32 r2, r2, r1;
        @p1 st.shared.u32 [r2], 0;
        bar.sync 0;
        atom.shared.add.u32 r3, [r2], tid;
        bar.sync 0;
        cvt.u64.u32 q1, r1; add.u64 q1, q1, counts;
        @p1 ld.shared.u32 r3, [r2];
        @p1 st.global.u32 [q1], r3;
        """,
        {"counts": counts},
        block=96,
    )
    assert counts.tolist() == [sum(range(first, 96, 8)) for first in range(8)]
