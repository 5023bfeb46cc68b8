"""wmma.load, wmma.mma and wmma.store: what comes out of memory goes through the product and back.

PTX does not say which lane holds what; where a test stores registers, the record says that an H200 agrees.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from matrices import BYTES, problems
from mma_registers import registers_of_a, registers_of_b, registers_of_c
from operands import Array
from single_opcode import run_body
from tensor_core import F16, F32, matrix_product

from harness.support.errors import KernelFault, UnsupportedInstruction

RNG = np.random.default_rng(37)
SHAPES = {"m16n16k16": (16, 16, 16), "m32n8k16": (32, 8, 16), "m8n32k16": (8, 32, 16), "m16n16k8": (16, 16, 8)}
BF16, TF32 = "f32.bf16.bf16.f32", "f32.tf32.tf32.f32"
TYPES = ("f32.f32", "f16.f16", "f32.f16", "f16.f32", BF16)
FORMS = [(shape, types) for shape in SHAPES if shape != "m16n16k8" for types in TYPES] + [("m16n16k8", TF32)]
SPACES = ("", ".global", ".shared")


def kinds(types: str) -> tuple[str, str, str]:
    """Of A and B, of C, of D."""
    words = types.split(".")
    return (words[1] if len(words) == 4 else "f16"), words[-1], words[0]


def registers(shape: str, operand: str, kind: str) -> int:
    m, n, k = SHAPES[shape]
    if operand in "cd":
        return 4 if kind == "f16" else 8
    if kind in ("f16", "tf32"):
        return 8 if kind == "f16" else 4
    return (m if operand == "a" else n) * k // 64


def braces(name: str, count: int) -> str:
    return "{" + ", ".join(f"{name}{i}" for i in range(count)) + "}"


NAMES = ".reg .b32 a<8>, b<8>, c<8>, d<8>, stride; .reg .b64 s;"


def in_memory(matrix: Array, order: str, stride: int = 0) -> Array:
    """Row or column major; behind each row or column there is room up to the stride."""
    lines = matrix if order == "row" else matrix.swapaxes(-1, -2)
    padding = max(stride - lines.shape[-1], 0)
    return np.ascontiguousarray(np.pad(lines, [(0, 0)] * (lines.ndim - 1) + [(0, padding)], constant_values=0x5555))


def product(
    shape: str,
    types: str,
    orders: tuple[str, str, str, str],
    matrices: tuple[Array, ...],
    stride: int = 0,
    space: str = "",
) -> Array:
    """The kernel of one product per block: load A, B and C, multiply, store D."""
    kind, of_c, of_d = kinds(types)
    m, n, _ = SHAPES[shape]
    a, b, c = (in_memory(x, order, stride) for x, order in zip(matrices, orders))
    d = in_memory(np.zeros((len(a), m, n), BYTES[of_d]), orders[3], stride)
    buffers = {"pa": a, "pb": b, "pc": c, "pd": d}
    by = ", stride" if stride else ""
    lines = [NAMES, "mov.u32 r0, %ctaid.x;", f"mov.u32 stride, {stride};"]
    for name, array in buffers.items():
        lines.append(f"mad.wide.u32 {name}, r0, {array[0].nbytes}, {name};")
    for name, kind_of, order in zip("abc", (kind, kind, of_c), orders):
        form = f"wmma.load.{name}.sync.aligned.{order}.{shape}{space}.{kind_of}"
        lines.append(f"{form} {braces(name, registers(shape, name, kind_of))}, [p{name}]{by};")
    counts = [registers(shape, name, kind_of) for name, kind_of in zip("dabc", (of_d, kind, kind, of_c))]
    operands = ", ".join(braces(name, count) for name, count in zip("dabc", counts))
    lines.append(f"wmma.mma.sync.aligned.{orders[0]}.{orders[1]}.{shape}.{types} {operands};")
    lines.append(f"wmma.store.d.sync.aligned.{orders[3]}.{shape}{space}.{of_d} [pd], {braces('d', counts[0])}{by};")
    run_body("\n".join(lines), buffers, grid=len(a))
    across = m if orders[3] == "col" else n
    return d[..., :across] if orders[3] == "row" else d[..., :across].swapaxes(-1, -2)


def expected(types: str, a: Array, b: Array, c: Array) -> Array:
    kind, of_c, of_d = kinds(types)
    if kind == "tf32":
        for k in (0, 4):
            c = matrix_product(kind, "f32", a[..., k : k + 4], b[..., k : k + 4, :], c)
        return c
    if of_c == of_d:
        return matrix_product(kind, of_c, a, b, c)
    if of_c == "f16":
        c = converted(c, F16, F32, np.uint32)
    d = matrix_product(kind, "f32", a, b, c)
    return d if of_d == "f32" else converted(d, F32, F16, np.uint16)


def converted(patterns: Array, source: type, target: type, dtype: type) -> Array:
    found = [source.converted(p, target) for p in patterns.reshape(-1).tolist()]  # type: ignore[attr-defined]
    nan = target.sign_bit - 1  # type: ignore[attr-defined]
    return np.array([nan if p is None else p for p in found], dtype).reshape(patterns.shape)


@pytest.mark.parametrize(("shape", "types"), FORMS)
def test_products(shape: str, types: str):
    """Of all orders in memory. Some against exact integers, all against the record."""
    kind, of_c, _ = kinds(types)
    for index, orders in enumerate(("row row row row", "row col col row", "col row row col", "col col col col")):
        matrices = problems(RNG, kind, of_c, SHAPES[shape], each=1)
        found = product(shape, types, tuple(orders.split()), matrices)  # type: ignore[arg-type]
        some = slice(index, None, 4)
        np.testing.assert_array_equal(found[some], expected(types, *(x[some] for x in matrices)))


@pytest.mark.parametrize("order", ["row", "col"])
@pytest.mark.parametrize(("shape", "types"), [("m16n16k16", "f32.f32"), ("m8n32k16", "f16.f16"), ("m16n16k8", TF32)])
def test_strides(shape: str, types: str, order: str):
    kind, of_c, _ = kinds(types)
    matrices = problems(RNG, kind, of_c, SHAPES[shape], each=1)
    found = product(shape, types, (order,) * 4, matrices, stride=40, space=".global")
    np.testing.assert_array_equal(found, product(shape, types, (order,) * 4, matrices))


def numbered(rows: int, columns: int, kind: str) -> Array:
    return np.arange(rows * columns, dtype=BYTES[kind]).reshape(rows, columns)


def size(shape: str, operand: str) -> tuple[int, int]:
    m, n, k = SHAPES[shape]
    return {"a": (m, k), "b": (k, n)}.get(operand, (m, n))


def copy_to_shared(nbytes: int, pointer: str) -> str:
    return (
        f"mov.u32 r0, tile; mad.lo.u32 r0, tid, {nbytes // 32}, r0; mad.wide.u32 q0, tid, {nbytes // 32}, {pointer};\n"
        + "\n".join(f"ld.global.u32 r1, [q0+{i}]; st.shared.u32 [r0+{i}], r1;" for i in range(0, nbytes // 32, 4))
        + "bar.sync 0;"
    )


def loaded(shape: str, operand: str, kind: str, order: str, space: str) -> Array:
    """The registers of a matrix whose elements are their numbers in it."""
    matrix = in_memory(numbered(*size(shape, operand), kind), order)
    count = registers(shape, operand, kind)
    out = np.zeros((count, 32), np.uint32)
    start = copy_to_shared(matrix.nbytes, "memory") + "mov.u64 s, tile;" if space == ".shared" else "mov.u64 s, memory;"
    store = "\n".join(f"st.global.u32 [q2+{128 * i}], a{i};" for i in range(count))
    run_body(
        f"{NAMES} {start} wmma.load.{operand}.sync.aligned.{order}.{shape}{space}.{kind} {braces('a', count)}, [s];\n"
        f"mad.wide.u32 q2, tid, 4, out;\n{store}",
        {"memory": matrix, "out": out},
        ".shared .align 32 .b8 tile[2048];",
    )
    return out


OPERANDS = [
    (shape, operand, kind)
    for shape, types in FORMS
    if types in ("f32.f32", "f16.f16", BF16, TF32)
    for operand, kind in zip("abc", (kinds(types)[0], kinds(types)[0], kinds(types)[1]))
    if types != "f16.f16" or operand == "c"
]


@pytest.mark.parametrize(("shape", "operand", "kind"), dict.fromkeys(OPERANDS))
def test_fragments(shape: str, operand: str, kind: str):
    """The same registers from rows and columns and from every space, and each element in one of them, or two."""
    first = loaded(shape, operand, kind, "row", "")
    for order in ("row", "col"):
        for space in SPACES:
            np.testing.assert_array_equal(loaded(shape, operand, kind, order, space), first)
    elements = first if BYTES[kind] == np.uint32 else first.view(np.uint16)
    numbers, times = np.unique(elements, return_counts=True)
    rows, columns = size(shape, operand)
    np.testing.assert_array_equal(numbers, np.arange(rows * columns))
    assert (times == elements.size // (rows * columns)).all()


def test_fragments_are_those_of_mma():
    """So a kernel may give fragments to mma.sync."""
    for shape, kind in (("m16n16k16", "bf16"), ("m16n16k8", "tf32")):
        _, _, k = SHAPES[shape]
        a, b = numbered(16, k, kind), numbered(k, 16, kind)
        np.testing.assert_array_equal(loaded(shape, "a", kind, "row", ""), registers_of_a(kind, a[None])[0])
        halves = [registers_of_b(kind, b[None, :, columns])[0] for columns in (slice(8), slice(8, None))]
        np.testing.assert_array_equal(loaded(shape, "b", kind, "col", ""), np.concatenate(halves))
    for kind in ("f16", "f32"):
        c = numbered(16, 16, kind)
        halves = [registers_of_c(c[None, :, columns])[0] for columns in (slice(8), slice(8, None))]
        np.testing.assert_array_equal(loaded("m16n16k16", "c", kind, "row", ""), np.concatenate(halves))


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("order", ["row", "col"])
@pytest.mark.parametrize(
    ("shape", "kind"), [(s, kind) for s in SHAPES for kind in ("f16", "f32") if (s, kind) != ("m16n16k8", "f16")]
)
def test_accumulators_come_back_as_they_went(shape: str, kind: str, order: str, space: str):
    matrix = RNG.integers(0, 1 << 16, size(shape, "c"), dtype=np.uint32).astype(BYTES[kind])
    memory, out = in_memory(matrix, order), np.zeros(matrix.size, matrix.dtype)
    count = registers(shape, "c", kind)
    start = copy_to_shared(memory.nbytes, "memory") + "mov.u64 s, tile;" if space == ".shared" else "mov.u64 s, memory;"
    to = "other" if space == ".shared" else "out"
    end = "bar.sync 0; mov.u32 r0, other; mad.lo.u32 r0, tid, 64, r0; mad.wide.u32 q0, tid, 64, out;" + "\n".join(
        f"ld.shared.u32 r1, [r0+{i}]; st.global.u32 [q0+{i}], r1;" for i in range(0, memory.nbytes // 32, 4)
    )
    end = end.replace("tid, 64", f"tid, {memory.nbytes // 32}") if space == ".shared" else ""
    run_body(
        f"{NAMES} {start} wmma.load.c.sync.aligned.{order}.{shape}{space}.{kind} {braces('c', count)}, [s];\n"
        f"mov.u64 s, {to}; wmma.store.d.sync.aligned.row.{shape}{space}.{kind} [s], {braces('c', count)};\n{end}",
        {"memory": memory, "out": out},
        ".shared .align 32 .b8 tile[2048]; .shared .align 32 .b8 other[2048];",
    )
    np.testing.assert_array_equal(out.reshape(matrix.shape), matrix)


LOAD = f"wmma.load.a.sync.aligned.row.m16n16k16.f16 {braces('a', 8)}, [memory]"


def test_faults():
    memory = {"memory": np.zeros(250, np.uint16)}
    with pytest.raises(KernelFault, match="out-of-bounds load of 4 bytes at byte offset 500 of buffer memory"):
        run_body(f"{NAMES} {LOAD};", memory)
    with pytest.raises(KernelFault, match="misaligned load of 4 bytes at byte offset 30 of buffer memory"):
        run_body(f"{NAMES} mov.u32 stride, 15; {LOAD}, stride;", memory)
    store = f"wmma.store.d.sync.aligned.col.m16n16k16.global.f32 [memory], {braces('d', 8)};"
    with pytest.raises(KernelFault, match="out-of-bounds store of 4 bytes"):
        run_body(f"{NAMES} {store}", memory)
    for text in (f"{LOAD};", store):
        with pytest.raises(KernelFault, match="all lanes of warp 0 together, but lanes 8-31 do not reach it"):
            run_body(f"{NAMES} setp.lt.u32 p0, tid, 8; @p0 {text}", memory)


@pytest.mark.parametrize(
    "text",
    [
        f"wmma.load.a.sync.aligned.row.m8n8k32.s4 {braces('a', 1)}, [s];",
        f"wmma.load.a.sync.aligned.row.m16n16k8.f16 {braces('a', 8)}, [s];",
        f"wmma.load.a.sync.aligned.row.m16n16k16.bf16 {braces('a', 8)}, [s];",
        f"wmma.load.c.sync.aligned.row.m16n16k8.f16 {braces('c', 4)}, [s];",
        f"wmma.store.d.sync.aligned.row.m8n8k4.f64 [s], {braces('d', 1)};",
        f"wmma.mma.sync.aligned.row.col.m16n16k16.f16.bf16.bf16.f16 {', '.join(map(braces, 'dabc', (4, 4, 4, 4)))};",
        f"wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32.satfinite {', '.join(map(braces, 'dabc', (8, 8, 8, 8)))};",
    ],
)
def test_other_forms_are_refused(text: str):
    with pytest.raises(UnsupportedInstruction, match=re.escape(text.split()[0])):
        run_body(f"{NAMES} {text}", {})
