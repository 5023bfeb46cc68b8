"""Products with block scaling, and copies that unpack elements: that they work at all, their counts and refusals."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from operands import Array

from harness.emulator.launch.kernel_launch import LaunchCounts
from harness.execution.traffic.counts import by_place
from harness.support.errors import KernelFault
from tests.emulator.hopper_kernel import HEAD
from tests.emulator.sanitized_kernel import find, lines
from tests.emulator.tensor_kernels import WAY, run_blackwell
from tests.emulator.tensor_operands import Layout, instruction_descriptor

PLAIN = Layout(False, "none", 2048, 128)
"""128 rows of 32 bytes, without a swizzle; of 16 bytes, rows are consecutive."""
SCALED = ("mxf8f6f4.block_scale.scale_vec::1X", "mxf4.block_scale", "mxf4nvf4.block_scale.block32",
          "mxf4nvf4.block_scale.scale_vec::4X")  # fmt: skip
COPIED = (
    ("mxf8f6f4.block_scale", ".b8x16.b4x16_p64", ", [%5], [%6]"), ("f8f6f4", ".b8x16.b6x16_p32", ""),
    ("mxf4.block_scale", "", ", [%5], [%6]"),
)  # fmt: skip
"""With A in tensor memory; how it is copied there; the scales."""
PACKED = (1, 2, 3, 6)
"""Forms of two elements in a byte."""
HEAD_OF_PRODUCT = r'asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, 0, 0;\n'
INPUTS = '"r"(0), "l"(da), "l"(db), "r"(word), "r"(136), "r"(128), "r"(132) : "memory"'
STEPS = "\n".join(
    [
        f"case {i}: {HEAD_OF_PRODUCT}tcgen05.mma.cta_group::1.kind::{form} [%0], %1, %2, %3, [%5], [%6], p;\\n}}"
        f'" :: {INPUTS}); break;'
        for i, form in enumerate(SCALED)
    ]
    + [
        f'case {i}: asm volatile("tcgen05.cp.cta_group::1.128x256b{source} [%0], %1;" :: "r"(136), "l"(da)); '
        f"{HEAD_OF_PRODUCT}tcgen05.mma.cta_group::1.kind::{form} [%0], [%4], %2, %3{scales}, p;\\n}}"
        f'" :: {INPUTS}); break;'
        for i, (form, source, scales) in enumerate(COPIED, len(SCALED))
    ]
)
KERNEL = f"""
extern "C" __global__ void k(const u32* operands, float* y, u64 kind, u32 word, int form, int columns, int mode) {{
  extern __shared__ __align__(1024) u32 s[]; __shared__ u32 place; __shared__ u64 bar;
  int t = threadIdx.x, w = t / 32, rank = blockIdx.x;
  int padded = mode > 4 ? 6 - mode : -1;
  for (int i = t; i < 2304; i += 128) if (i / 1024 != padded || i % 4 != 3) s[i] = operands[2304 * rank + i];
  if (mode > 4) mode = 0;
  if (t == 0) init(&bar, 1);
  if (w == 0) alloc(&place, 256);
  PROXY(); START();
  u64 da = kind + (place_of(s) >> 4 & 0x3FFF), db = da + 256, scales = da + 512;
  u32 own = w * 32 << 16;
  if (t == 0 && rank == 0) {{
    asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" :: "r"(128), "l"(scales) : "memory");
    asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" :: "r"(132), "l"(scales + 32) : "memory");
    if (mode != 4) commit(&bar);
  }}
  if (rank == 0 && mode < 3) {{ wait(&bar, 0); AFTER(); }}
  if (mode == 1 && w == 1) {{ store_cell(own + 133, ~0u); WAIT_ST(); }}
  if (mode == 2) store_cell(own + 132, 0);
  if (mode != 3) {{ BEFORE(); START(); AFTER(); }}
  if (t == (mode == 3 ? 96 : 0) && rank == 0) {{
    switch (form) {{
    {STEPS}
    }}
    commit(&bar);
  }}
  if (rank == 0) {{ if (mode == 3) wait(&bar, 0); wait(&bar, mode != 4); }}
  AFTER(); BEFORE(); START(); AFTER();
  for (int c = 0; c < columns; ++c) y[(rank * 128 + t) * columns + c] = __uint_as_float(load_cell(own + c));
  WAIT_LD(); BEFORE(); START();
  if (w == 0) dealloc(place, 256);
}}"""
ONE = KERNEL.replace("START()", "__syncthreads()")
PAIR = KERNEL.replace("START()", "meet()").replace("cta_group::1", "cta_group::2")
PAIR = PAIR.replace("void k(", "void __cluster_dims__(2, 1, 1) k(").replace("void alloc", "void alloc2")
MEET = """
__device__ void meet() {
  asm volatile("barrier.cluster.arrive.aligned;\\nbarrier.cluster.wait.aligned;" ::: "memory");
}"""
PAIR = (
    MEET
    + "".join(
        WAY[WAY.index(f"__device__ void {name}(") :]
        .split("\n}\n")[0]
        .replace("cta_group::1", "cta_group::2")
        .replace(f"void {name}", f"void {name}2")
        + "\n}\n"
        for name in ("alloc", "dealloc", "commit")
    )
    + PAIR.replace(" alloc(", " alloc2(").replace(" dealloc(", " dealloc2(").replace(" commit(", " commit2(")
)
LINE = 1 + ONE[: ONE.index("case 0")].count("\n")
"""Of the first product; copies of the scales are 10 and 9 lines before."""
E4M3, E2M3, E2M1 = ml_dtypes.float8_e4m3fn, ml_dtypes.float6_e2m3fn, ml_dtypes.float4_e2m1fn
UE8M0 = 1 << 23


def packed(elements: Array, bits: int, together: int) -> Array:
    """Elements (rows, K) as bytes (rows, 32): `together` of so many bits are at the begin of each 16 bytes."""
    digits = np.unpackbits(elements.view(np.uint8)[..., None], axis=-1, bitorder="little")[..., :bits]
    digits = digits.reshape(len(elements), -1, bits * together)
    units = np.zeros((*digits.shape[:2], 128), np.uint8)
    units[..., : digits.shape[2]] = digits
    return np.packbits(units, axis=-1, bitorder="little").reshape(len(elements), -1)


def scale_atom(scales: Array, first: int) -> Array:
    """512 bytes with the scales of up to 128 rows, from byte `first` of each row's word on; others are random."""
    atom = np.random.default_rng(9).integers(0, 100, (32, 4, 4)).astype(np.uint8)
    for row, given in enumerate(scales):
        atom[row % 32, row // 32, first : first + len(given)] = given
    return atom.reshape(-1)


class Case:
    """Random operands of one form, all of whose sums are exact, for one block or, with `blocks` 2, for a pair."""

    def __init__(self, form: int, blocks: int = 1) -> None:
        rng = np.random.default_rng(form)
        self.form, self.blocks, self.rows, self.columns = form, blocks, 128 * blocks, 64 * blocks
        depth = 64 if form in PACKED else 32
        self.first = (3, 2, 0, 0, 1, 0, 0)[form]
        """The byte at which scales begin."""
        count = (1, 2, 2, 4, 1, 0, 2)[form]
        a_type, b_type = {0: (E4M3, E2M3), 4: (E2M1, E4M3), 5: (E2M3, E4M3)}.get(form, (E2M1, E2M1))
        self.a, self.b = (
            rng.integers(-4, 5, (length, depth)).astype(np.float32).astype(kind)
            for length, kind in ((self.rows, a_type), (self.columns, b_type))
        )
        self.images = [self.image_of(each) for each in (self.a, self.b)]
        if form == 3:
            self.scales = [
                rng.integers(0x30, 0x40, (length, count)).astype(np.uint8) for length in (self.rows, self.columns)
            ]
            factors = [each.view(E4M3).astype(np.float64) for each in self.scales]
        else:
            self.scales = [
                rng.integers(125, 130, (length, count)).astype(np.uint8) for length in (self.rows, self.columns)
            ]
            factors = [2.0 ** (each.astype(np.float64) - 127) for each in self.scales]
        a, b = (each.astype(np.float64) for each in (self.a, self.b))
        if count:
            a, b = (x * np.repeat(factor, depth // count, 1) for x, factor in zip((a, b), factors))
        self.expected = a @ b.T

    def image_of(self, elements: Array) -> Array:
        """A matrix as rows of 32 bytes."""
        bits = {E4M3: 8, E2M3: 6, E2M1: 4}[elements.dtype.type]
        return packed(elements, bits, 32 if self.form in PACKED else 16)

    @property
    def word(self) -> int:
        """The instruction descriptor."""
        if self.form in PACKED:
            types = 1, 1
        else:
            types = tuple({E4M3: 0, E2M3: 3, E2M1: 5}[each.dtype.type] for each in (self.a, self.b))
        if self.form == 5:
            return instruction_descriptor(self.rows, self.columns, *types, 1)
        more = self.first << 29 | self.first << 4 | (0 if self.form == 3 else UE8M0)
        return instruction_descriptor(self.rows, self.columns, *types, 0, more=more)

    def run(self, mode: int = 0, word: int | None = None, source: str | None = None) -> tuple[Array, LaunchCounts]:
        """D, and what was counted."""
        arrays, args, launch = self.launch(mode, self.word if word is None else word)
        after, counts = run_blackwell(source or (PAIR if self.blocks == 2 else ONE), arrays, args, **launch)
        return after["y"].reshape(self.rows, self.columns), counts

    def launch(self, mode: int, word: int) -> tuple[dict[str, Array], tuple[Any, ...], dict[str, Any]]:
        """Arrays, arguments and shape of a launch."""
        operands = []
        for rank in range(self.blocks):
            a, b = (each[len(each) // self.blocks * rank :][: len(each) // self.blocks] for each in self.images)
            scales = self.scales[0][128 * rank : 128 * rank + 128], self.scales[1]
            atoms = [scale_atom(each, self.first) for each in scales]
            operands += [PLAIN.image(a, 4096), PLAIN.image(b, 4096), *atoms]
        arrays = {
            "operands": np.concatenate(operands).view(np.uint32),
            "y": np.zeros(self.rows * self.columns, np.float32),
        }
        args = ("operands", "y", np.uint64(PLAIN.descriptor()), np.uint32(word), np.int32(self.form),
                np.int32(self.columns), np.int32(mode))  # fmt: skip
        return arrays, args, {"grid": (self.blocks, 1, 1), "block": (128, 1, 1), "shared_bytes": 9216}


@pytest.mark.parametrize("form", range(7), ids=[*SCALED, "copied e2m1", "copied e2m3", "copied mxf4"])
def test_sums_are_exact(form: int) -> None:
    """Each form, with scales from different bytes of their words; the last three have A in tensor memory."""
    case = Case(form)
    assert np.array_equal(case.run()[0], case.expected)
    assert np.array_equal(case.run(word=case.word | 1 << 13)[0], -case.expected)


def test_the_smallest_and_largest_scales_and_nan() -> None:
    """Of ue8m0, in three rows of A: 2**-127, of which sums are subnormal; 2**127, of which most are infinite; NaN."""
    case = Case(0)
    own = case.scales[0][[7, 9, 5], 0].astype(np.float64)
    case.scales[0][[7, 9, 5], 0] = 0, 254, 255
    case.a[5] = 0
    case.images[0] = case.image_of(case.a)
    case.expected[[7, 9]] *= 2.0 ** (np.array([0, 254]) - own[:2])[:, None]
    case.expected[5] = np.nan
    with np.errstate(over="ignore"):
        expected = case.expected.astype(np.float32)
    assert np.isinf(expected[9]).any() and (0 < np.abs(expected[7])).any()
    assert np.array_equal(case.run()[0], expected, equal_nan=True)


def test_nan_of_ue4m3() -> None:
    """0x7F; the upper bit of a scale is ignored."""
    case = Case(3)
    case.scales[1] |= 0x80
    case.scales[1][3, 2] = 0xFF
    case.expected[:, 3] = np.nan
    assert np.array_equal(case.run()[0], case.expected, equal_nan=True)


@pytest.mark.parametrize("form", [0, 3, 4])
def test_two_blocks(form: int) -> None:
    """Each has half of the columns of B, and the scales of all of them."""
    case = Case(form, 2)
    assert np.array_equal(case.run()[0], case.expected)


def test_each_quarter_of_the_lanes_has_its_own_copy_of_the_scales() -> None:
    """The second quarter's copy of the scales of columns 32 to 63 is NaN."""
    case = Case(0)
    found, _ = case.run(1)
    wrong = np.isnan(found)
    assert wrong[32:64, 32:].all() and np.array_equal(found[~wrong], case.expected[~wrong])
    assert wrong.sum() == 32 * 32


def test_scales_that_are_stored_without_a_wait() -> None:
    assert np.isnan(Case(1).run(2)[0]).all()


def test_a_copy_is_executed_before_the_product_that_follows() -> None:
    """Without a commit and a wait between them."""
    case = Case(2)
    assert np.array_equal(case.run(4)[0], case.expected)


def test_bytes_by_line() -> None:
    """Two scales for each row of A and column of B; 32 bytes for each of them in shared memory; D of 128 x 64."""
    _, counts = Case(1).run()
    rows = {(row.kind, row.line): row.requested_bytes for row in by_place(counts.tensor)}
    assert {kind: rows[kind, LINE + 1] for kind in ("load", "store", "operand")} == {
        "load": 2 * (128 + 64), "store": 4 * 128 * 64, "operand": 32 * (128 + 64),
    }  # fmt: skip


def findings(form: int, mode: int, *changes: tuple[str, str]) -> set[tuple[str, int, int | None]]:
    import cupy

    source = ONE
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    kernel = cupy.RawKernel(f'{HEAD}{WAY}\n#line 1 "planted.cu"\n{source}', "k", options=("-arch=sm_100a",))
    case = Case(form)
    arrays, args, launch = case.launch(mode, case.word)
    return {lines(finding) for finding in find(kernel, arrays, args, arch="sm_100", **launch)}


@pytest.mark.parametrize(("form", "mode"), [(0, 5), (3, 0), (5, 6)])
def test_no_findings(form: int, mode: int) -> None:
    """Neither of scales, nor of the last word of each 16 bytes of e2m3, which is padding that nothing writes."""
    assert findings(form, mode) == set()


def test_elements_that_are_never_written() -> None:
    """The last word of each 16 bytes of e4m3."""
    assert findings(0, 6) == {("uninitialised read", LINE, None)}


def test_scales_that_another_warp_copies() -> None:
    """The product of warp 3 is not ordered with the copies of warp 0, whichever comes first."""
    races = {frozenset((line, other)) for kind, line, other in findings(0, 3) if kind in ("RAW race", "WAR race")}
    assert races == {frozenset((LINE - 10, LINE)), frozenset((LINE - 9, LINE))}


BAD = {
    "K of 96": (1, 1 << 31, "K = 96"),
    "reserved": (0, 1 << 25, "bits that have to be 0"),
    "transposed": (1, 1 << 15, "bits that have to be 0"),
    "narrow and transposed": (0, 1 << 16, "transposes elements of less than 8 bits"),
    "sparse": (0, 4, "sparse"),
    "byte of two scales": (1, 1 << 29, "byte 3 .*it has to be 0 or 2"),
    "byte of four scales": (3, 2 << 4, "of B at byte 2"),
    "scales of ue4m3": (2, UE8M0, "ue4m3, which only"),
    "types": (2, 6 << 7, "types 7 of A, 1 of B"),
    "M": (1, 3 << 27, "M = 256 and N = 64"),
    "N": (1, 8 << 17, "M = 128 and N = 0"),
}
"""A form, bits of its descriptor that are flipped, and what the fault says."""


@pytest.mark.parametrize("name", BAD)
def test_descriptors_that_are_refused(name: str) -> None:
    form, flipped, message = BAD[name]
    case = Case(form)
    with pytest.raises(KernelFault, match=rf"planted.cu:\d+ .*{message}"):
        case.run(0, case.word ^ flipped)


def test_half_of_the_rows_in_two_blocks_are_refused() -> None:
    case = Case(0, 2)
    with pytest.raises(KernelFault, match="M = 128 in two blocks with block scaling, which is not emulated"):
        case.run(0, case.word ^ 3 << 27)


def test_scales_that_are_not_allocated() -> None:
    case = Case(1)
    with pytest.raises(KernelFault, match="an access from lane 0, column 511 of tensor memory reaches beyond"):
        case.run(source=ONE.replace('"r"(132) : "memory"', '"r"(511) : "memory"'))
