"""mma.sync: matrices go to registers as the PTX ISA says, and come back as exact integers say, or an H200."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from matrices import BYTES, problems
from mma_registers import GROUP, PLACE, registers_of_a, registers_of_b, registers_of_c
from operands import Array
from single_opcode import HEADER, run_ptx
from tensor_core import FORMATS, dot_product, matrix_product

from harness.support.errors import KernelFault, UnsupportedInstruction

RNG = np.random.default_rng(29)
FORMS = {
    "m16n8k8.row.col.f32.f16.f16.f32": ("f16", "f32", 8),
    "m16n8k16.row.col.f32.f16.f16.f32": ("f16", "f32", 16),
    "m16n8k8.row.col.f16.f16.f16.f16": ("f16", "f16", 8),
    "m16n8k16.row.col.f16.f16.f16.f16": ("f16", "f16", 16),
    "m16n8k8.row.col.f32.bf16.bf16.f32": ("bf16", "f32", 8),
    "m16n8k16.row.col.f32.bf16.bf16.f32": ("bf16", "f32", 16),
    "m16n8k4.row.col.f32.tf32.tf32.f32": ("tf32", "f32", 4),
    "m16n8k8.row.col.f32.tf32.tf32.f32": ("tf32", "f32", 8),
}
"""Type of the multiplicands, type of the accumulators, K."""


def matrices_of_d(accumulator: str, registers: Array) -> Array:
    d = np.zeros((len(registers), 16, 8), BYTES[accumulator])
    for i in range(registers.shape[1]):
        if accumulator == "f16":
            for half in (0, 1):
                d[:, GROUP + 8 * i, 2 * PLACE + half] = registers[:, i] >> np.uint32(16 * half) & np.uint32(0xFFFF)
        else:
            d[:, GROUP + 8 * (i // 2), 2 * PLACE + i % 2] = registers[:, i]
    return d


def braces(name: str, count: int) -> str:
    return "{" + ", ".join(f"{name}{i}" for i in range(count)) + "}"


def kernel(form: str, counts: tuple[int, int, int], instruction: str = "") -> str:
    """One warp per block; a register of a warp is 32 words of memory."""
    lines = [HEADER, ".visible .entry kernel(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd) {"]
    lines += [".reg .b32 lane, block, word, a<4>, b<2>, c<4>, d<4>; .reg .b64 base, p; .reg .pred some;"]
    lines += ["mov.u32 lane, %tid.x; mov.u32 block, %ctaid.x;"]
    for name, count in zip("abc", counts):
        lines += [f"ld.param.u64 base, [p{name}]; mad.lo.u32 word, block, {32 * count}, lane;"]
        lines += ["mad.wide.u32 p, word, 4, base;"]
        lines += [f"ld.global.u32 {name}{i}, [p+{128 * i}];" for i in range(count)]
    registers = [braces(name, count) for name, count in zip("dabc", (counts[2], *counts))]
    lines += [instruction or f"mma.sync.aligned.{form} {', '.join(registers)};"]
    lines += [
        f"ld.param.u64 base, [pd]; mad.lo.u32 word, block, {32 * counts[2]}, lane; mad.wide.u32 p, word, 4, base;"
    ]
    return "\n".join([*lines, *(f"st.global.u32 [p+{128 * i}], d{i};" for i in range(counts[2])), "ret; }"])


def run(form: str, a: Array, b: Array, c: Array) -> Array:
    kind, accumulator, _ = FORMS[form]
    registers = {"a": registers_of_a(kind, a), "b": registers_of_b(kind, b), "c": registers_of_c(c)}
    d = np.zeros(registers["c"].shape, np.uint32)
    counts = tuple(r.shape[1] for r in registers.values())
    run_ptx(kernel(form, counts), {**registers, "d": d}, grid=len(a))  # type: ignore[arg-type]
    return matrices_of_d(accumulator, d)


def compare(found: Array, expected: Array, *operands: Array) -> None:
    wrong = np.argwhere(found != expected)
    if len(wrong):
        n, i, j = wrong[0]
        a, b, c = operands
        row, column = ([hex(x) for x in v] for v in (a[n, i], b[n, :, j]))
        pytest.fail(
            f"{row} x {column} + {hex(c[n, i, j])} gives {hex(found[n, i, j])} instead of {hex(expected[n, i, j])}; "
            f"{len(wrong)} of {found.size} are wrong"
        )


@pytest.mark.parametrize("form", FORMS)
def test_random_matrices(form: str):
    """A few of them against exact integers; all against the record of an H200."""
    kind, accumulator, depth = FORMS[form]
    operands = problems(RNG, kind, accumulator, (16, 8, depth), each=16)
    found = run(form, *operands)
    some = slice(None, None, 8)
    expected = matrix_product(kind, accumulator, *(o[some] for o in operands))
    compare(found[some], expected, *(o[some] for o in operands))


@pytest.mark.parametrize("form", FORMS)
def test_edges(form: str):
    """One product of edge values and one edge value as C: each with each."""
    kind, accumulator, depth = FORMS[form]
    of_a, of_c = edges(kind), edges(accumulator)
    triples = np.array(list(itertools.product(range(len(of_a)), range(len(of_a)), range(len(of_c)))))
    triples = np.resize(triples, (-(-len(triples) // 8) * 8, 3)).reshape(-1, 8, 3)
    a = np.zeros((len(triples), 16, depth), BYTES[kind])
    b = np.zeros((len(triples), depth, 8), BYTES[kind])
    c = np.zeros((len(triples), 16, 8), BYTES[accumulator])
    # Eight triples to a matrix, on the diagonal.
    for i in range(8):
        a[:, i, depth - 1 - i % 4] = of_a[triples[:, i, 0]]
        b[:, depth - 1 - i % 4, i] = of_a[triples[:, i, 1]]
        c[:, i, i] = of_c[triples[:, i, 2]]
    found = run(form, a, b, c)
    shift = np.uint32(13 if kind == "tf32" else 0)
    for place in np.ndindex(triples.shape[:2]):
        x, y, z = (int(values[index]) for values, index in zip((of_a >> shift, of_a >> shift, of_c), triples[place]))
        got, wanted = int(found[place[0], place[1], place[1]]), dot_product(kind, accumulator, [x], [y], z)
        assert got == wanted, f"{hex(x)} x {hex(y)} + {hex(z)} gives {hex(got)} instead of {hex(wanted)}"


def edges(kind: str) -> Array:
    form = FORMATS[kind]
    unit = 1 << form.fraction_bits
    magnitudes = [0, 1, unit - 1, unit, form.one, form.one + 1, form.infinity - 1, form.infinity, form.infinity + 1]
    values = [sign | magnitude for sign in (0, form.sign_bit) for magnitude in magnitudes]
    shift = 13 if kind == "tf32" else 0
    return np.array(values, np.uint32).astype(BYTES[kind]) << BYTES[kind](shift)


@pytest.mark.parametrize(
    ("count", "small", "expected"),
    [
        (2, 2**-24, 1 + 2**-23),
        (4, 2**-25, 1 + 2**-23),  # kept, and together large enough for the result
        (3, 2**-25, 1.0),  # kept, and cut off with the sum
        (8, 2**-26, 1.0),  # cut off before they are added
    ],
)
def test_what_is_too_small_is_cut_off_before_it_is_added(count: int, small: float, expected: float):
    a, b = np.zeros((1, 16, 8), np.float16), np.zeros((1, 8, 8), np.float16)
    a[0, 0, :count], b[0, :count, 0] = small * 2**12, 2**-12
    c = np.zeros((1, 16, 8), np.float32)
    c[0, 0, 0] = 1
    found = run("m16n8k8.row.col.f32.f16.f16.f32", a.view(np.uint16), b.view(np.uint16), c.view(np.uint32))
    assert found.view(np.float32)[0, 0, 0] == np.float32(expected)


def test_sixteen_products_are_one_sum():
    """Small products first, which would be there after a step of 8, and then what they are too small for."""
    a, b = np.zeros((1, 16, 16), np.float16), np.zeros((1, 16, 8), np.float16)
    a[0, 0, :8], a[0, 0, 14], a[0, 0, 15] = 2**-12, 2**14, -(2**14)
    b[0, :, 0] = 1
    c = np.zeros((1, 16, 8), np.uint32)
    found = run("m16n8k16.row.col.f32.f16.f16.f32", a.view(np.uint16), b.view(np.uint16), c)
    assert found[0, 0, 0] == 0


def test_registers_of_a_product_may_be_the_operands():
    """D in the place of A and B, and twice in a row."""
    a, b, c = problems(RNG, "f16", "f32", (16, 8, 16), each=2)
    registers = {"a": registers_of_a("f16", a), "b": registers_of_b("f16", b), "c": registers_of_c(c)}
    d = np.zeros(registers["c"].shape, np.uint32)
    operands = ", ".join(map(braces, "abc", (4, 2, 4)))
    text = f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{a3, b0, c1, c0}}, {operands};"
    text += "mov.b32 d0, a3; mov.b32 d1, b0; mov.b32 d2, c1; mov.b32 d3, c0;"
    run_ptx(kernel("", (4, 2, 4), text), {**registers, "d": d}, grid=len(a))
    compare(matrices_of_d("f32", d), matrix_product("f16", "f32", a, b, c), a, b, c)


MMA = f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {', '.join(map(braces, 'dabc', (4, 4, 2, 4)))};"


def run_text(text: str, block: int = 32) -> Array:
    zeros = {name: np.zeros((1, count, 32), np.uint32) for name, count in zip("abc", (4, 2, 4))}
    zeros["c"] += np.uint32(7)
    d = np.zeros((1, 4, 32), np.uint32)
    run_ptx(kernel("", (4, 2, 4), text), {**zeros, "d": d}, block=block)
    return d


def test_under_a_predicate_all_lanes_or_none():
    set_d = "mov.b32 d0, 5; mov.b32 d1, 5; mov.b32 d2, 5; mov.b32 d3, 5; setp.{}.u32 some, lane, 32;"
    assert (run_text(f"{set_d.format('lt')} @some {MMA}") == 7).all()
    assert (run_text(f"{set_d.format('ge')} @some {MMA}") == 5).all()


@pytest.mark.parametrize(
    ("text", "block", "lanes"),
    [
        (f"setp.lt.u32 some, lane, 30; @some {MMA}", 32, "30-31"),
        (f"setp.lt.u32 some, lane, 30; @some bra out; {MMA} out:", 32, "0-29"),
        (MMA, 24, "24-31"),
    ],
)
def test_a_part_of_a_warp_is_a_fault(text: str, block: int, lanes: str):
    with pytest.raises(KernelFault, match=rf"all lanes of warp 0 together, but lanes {lanes} do not reach it"):
        run_text(text, block)


@pytest.mark.parametrize(
    "form",
    [
        "m16n8k16.row.col.f32.f16.bf16.f32",
        "m16n8k16.row.col.f32.f16.f16.f16",
        "m16n8k16.row.col.f16.bf16.bf16.f16",
        "m16n8k16.row.col.f32.tf32.tf32.f32",
        "m16n8k4.row.col.f32.f16.f16.f32",
        "m8n8k4.row.col.f32.f16.f16.f32",
    ],
)
def test_other_forms_are_refused(form: str):
    text = f"mma.sync.aligned.{form} {{d0, d1, d2, d3}}, {{a0, a1, a2, a3}}, {{b0, b1}}, {{c0, c1, c2, c3}};"
    with pytest.raises(UnsupportedInstruction, match=form):
        run_text(text)
