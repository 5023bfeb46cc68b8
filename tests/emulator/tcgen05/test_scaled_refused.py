"""Block scaling and small floats that the PTX ISA does not have: errors that name the line.

Sections 9.7.16.2.1 (shapes), 9.7.16.4.2 (descriptors), 9.7.16.10.1 and .3 (transpositions) and 9.7.16.10.7.1 (scale
vectors).
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from product_model import InstructionDescriptor, Product
from scaled_cases import PAIRED, SCALED
from scaled_model import ScaledDescriptor, ScaledProduct
from shared_operands import ATOMS_OF_32, SharedDescriptor
from tensor_machine import TensorMachine
from tensor_memory_model import COLUMNS, LANES
from test_descriptors_refused import Word
from test_forms_refused import KERNEL, LINE
from test_products import FLOATS

from harness.emulator.native.kernel_cache import native_kernel
from harness.support.errors import KernelFault, SandboxError

MMA = "tcgen05.mma.cta_group::1.kind::"
SCALED_OPERANDS = "[d], a, b, form, [d], [d], p"
COPY = "tcgen05.cp.cta_group::1."
VALID = [
    *(f"{MMA}mxf8f6f4.block_scale{vector} {SCALED_OPERANDS}" for vector in ("", ".scale_vec::1X", ".block32")),
    *(f"{MMA}mxf4.block_scale{vector} {SCALED_OPERANDS}" for vector in ("", ".scale_vec::2X", ".block32")),
    *(f"{MMA}mxf4nvf4.block_scale{vector} {SCALED_OPERANDS}" for vector in (".scale_vec::2X", ".scale_vec::4X")),
    *(f"{MMA}mxf4nvf4.block_scale{vector} {SCALED_OPERANDS}" for vector in (".block16", ".block32")),
    f"{MMA}mxf4.block_scale [d], [d], b, form, [d], [d], p",
    *(f"{MMA}mxf4.block_scale.block32.collector::a::{use} {SCALED_OPERANDS}" for use in ("fill", "use", "lastuse")),
    f"{COPY}4x256b.b8x16.b4x16_p64 [d], a",
    f"{COPY}64x128b.warpx2::02_13.b8x16.b6x16_p32 [d], a",
]
WRONG = [
    *(f"{MMA}{kind} {SCALED_OPERANDS}" for kind in ("mxf8f6f4", "mxf4", "mxf4nvf4")),
    *(f"{MMA}mxf8f6f4.block_scale{vector} {SCALED_OPERANDS}" for vector in (".scale_vec::2X", ".scale_vec::4X")),
    f"{MMA}mxf8f6f4.block_scale.block16 {SCALED_OPERANDS}",
    *(f"{MMA}mxf4.block_scale{vector} {SCALED_OPERANDS}" for vector in (".scale_vec::1X", ".scale_vec::4X")),
    f"{MMA}mxf4.block_scale.block16 {SCALED_OPERANDS}",
    *(f"{MMA}mxf4nvf4.block_scale{vector} {SCALED_OPERANDS}" for vector in ("", ".scale_vec::1X")),
    f"{MMA}f16.block_scale {SCALED_OPERANDS}",
    f"{MMA}f8f6f4.block_scale.scale_vec::1X {SCALED_OPERANDS}",
    f"{MMA}mxf4 [d], a, b, form, p",
    f"{MMA}mxf4.block_scale [d], a, b, form, p",
    f"{MMA}mxf4.block_scale [d], a, b, form, [d], p",
    f"{MMA}mxf4.block_scale [d], a, b, form, d, d, p",
    f"{MMA}mxf4.block_scale [d], a, b, form, {{r0, r0, r0, r0}}, [d], [d], p",
    f"{MMA}mxf4.block_scale {SCALED_OPERANDS}, 1",
    f"{MMA}mxf4.block_scale.block32.collector::b0::fill {SCALED_OPERANDS}",
    f"{MMA}mxf4.block_scale.ashift [d], [d], b, form, [d], [d], p",
    f"tcgen05.mma.ws.cta_group::1.kind::mxf4.block_scale {SCALED_OPERANDS}",
    f"{COPY}128x256b.b8x16 [d], a",
    f"{COPY}128x256b.b6x16_p32 [d], a",
    f"{COPY}128x256b.b8x16.b8x16 [d], a",
    f"{COPY}128x256b.b8x16.b6x16_p64 [d], a",
    f"{COPY}128x256b.b8x16.b4x16_p32 [d], a",
    f"{COPY}32x128b.b8x16.b4x16_p64 [d], a",
]
"""NVIDIA's assembler 13.0 accepts each of the former and none of these."""


def test_forms():
    native_kernel(KERNEL.replace("FORM", ";\n".join(VALID)), "k")


@pytest.mark.parametrize("form", WRONG)
def test_forms_refused(form: str):
    """When the kernel is compiled, with the opcode and the line."""
    with pytest.raises(SandboxError) as caught:
        native_kernel(KERNEL.replace("FORM", form), "k")
    told = str(caught.value)
    assert form.split()[0] in told and f"line {LINE}" in told, told


IN_FAMILY = [each for each in VALID if ".scale_vec" not in each]
"""Forms that sm_100f has: `.block16` and `.block32` instead of `.scale_vec`."""
NOT_IN_FAMILY = [each for each in VALID if ".scale_vec" in each]
NOT_IN_FAMILY += [f"{MMA}i8 [d], a, b, form, p", "tcgen05.shift.cta_group::1.down [d]"]


@pytest.mark.parametrize("form", IN_FAMILY)
def test_forms_of_the_family(form: str):
    """The PTX ISA lists sm_100f for tcgen05.mma without sparsity, of all kinds but `.kind::i8`."""
    native_kernel(KERNEL.replace("sm_100a", "sm_100f").replace("FORM", form), "k")


@pytest.mark.parametrize("form", NOT_IN_FAMILY)
def test_forms_that_the_family_lacks(form: str):
    with pytest.raises(SandboxError) as caught:
        native_kernel(KERNEL.replace("sm_100a", "sm_100f").replace("FORM", form), "k")
    told = str(caught.value)
    assert form.split()[0] in told and f"line {LINE}" in told, told


MATRIX = SharedDescriptor(0, 4096, 128).encode()
TURNED = SharedDescriptor(0, 4096, 128, ATOMS_OF_32).encode()
SCALE_COLUMNS = 64, 128
FORMS = {
    "mxf8f6f4": ScaledDescriptor("mxf8f6f4", "e2m3", "e2m1", 128, 32),
    "mxf4": ScaledDescriptor("mxf4", "e2m1", "e2m1", 128, 32),
    "mxf4nvf4": ScaledDescriptor("mxf4nvf4", "e2m1", "e2m1", 128, 32),
}
VECTORS = {"mxf8f6f4": ".scale_vec::1X", "mxf4": ".scale_vec::2X", "mxf4nvf4": ".scale_vec::2X"}
FIELDS = {"sparse": (2, 1), "id_b": (4, 2), "a": (7, 3), "b": (10, 3), "negate": (13, 2), "turned": (15, 2),
          "n": (17, 6), "scale": (23, 1), "m": (27, 2), "id_a": (29, 2), "k": (31, 1),
          "r0": (0, 1), "r1": (1, 1), "r3": (3, 1), "r6": (6, 1), "r24": (24, 1), "r26": (26, 1)}  # fmt: skip
"""First bit and number of bits in Tables 43 and 44."""


def changed(word: int, **fields: int) -> int:
    """An instruction descriptor with other fields."""
    for name, value in fields.items():
        bit, size = FIELDS[name]
        word = word & ~((1 << size) - 1 << bit) | value << bit
    return word


def fault_of(machine: TensorMachine, step: Product | ScaledProduct, text: str) -> None:
    """The product faults at the line of its instruction, which has this text, because of a descriptor."""
    shared, memory = np.zeros(16384, np.uint8), np.zeros((LANES, COLUMNS), np.uint32)
    line = next(i for i, each in enumerate(machine.source().splitlines(), 1) if text in each)
    with pytest.raises(KernelFault) as caught:
        machine.run([step], [shared] * machine.blocks, [memory] * machine.blocks)
    told = str(caught.value)
    assert f"planted.cu:{line} " in told and "descriptor" in told, told


def scaled(kind: str, vector: str, word: int, b: int = MATRIX) -> ScaledProduct:
    return ScaledProduct(0, MATRIX, b, Word(kind, word), *SCALE_COLUMNS, vector)  # type: ignore[arg-type]


WRONG_FIELDS = [
    *((kind, {"m": m}) for kind in FORMS for m in (0, 2, 3)),
    *((kind, {"n": n}) for kind in FORMS for n in (0, 33)),
    *((kind, {name: 1}) for kind in FORMS for name in ("sparse", "k", "r0", "r1", "r3", "r6", "r24", "r26")),
    *(("mxf8f6f4", {name: number}) for name in "ab" for number in (2, 6, 7)),
    *((kind, {name: number}) for kind in ("mxf4", "mxf4nvf4") for name in "ab" for number in (0, 2, 5)),
    *((kind, {name: number}) for kind in ("mxf4", "mxf4nvf4") for name in ("id_a", "id_b") for number in (1, 3)),
    *((kind, {"turned": turned}) for kind in FORMS for turned in (1, 2)),
    *((kind, {"scale": 0}) for kind in FORMS),
]
"""M, N, K, types, ids, transpositions of elements of 4 and 6 bits, and ue4m3 where Table 57 does not have it."""


@pytest.mark.parametrize(("kind", "fields"), WRONG_FIELDS)
def test_instruction_descriptors(kind: str, fields: dict[str, int]):
    vector = VECTORS[kind]
    step = scaled(kind, vector, changed(FORMS[kind].encode(), **fields))
    fault_of(SCALED, step, f"kind::{kind}.block_scale{vector} [%0], %1,")


@pytest.mark.parametrize("fields", [{"id_a": 1}, {"id_a": 2}, {"id_b": 2}, {"id_b": 3}])
def test_ids_of_four_scale_factors(fields: dict[str, int]):
    """They fill their word."""
    vector = ".scale_vec::4X"
    step = scaled("mxf4nvf4", vector, changed(FORMS["mxf4nvf4"].encode(), **fields))
    fault_of(SCALED, step, f"mxf4nvf4.block_scale{vector} [%0], %1,")


@pytest.mark.parametrize("kind", ["mxf8f6f4", "mxf4nvf4"])
def test_columns_of_a_pair(kind: str):
    """N is a multiple of 16."""
    vector = "" if kind == "mxf8f6f4" else ".scale_vec::4X"
    form = dataclasses.replace(FORMS[kind], m=256, n=24)
    fault_of(PAIRED, scaled(kind, vector, form.encode()), f"kind::{kind}.block_scale{vector} [%0], %1,")


def test_a_transposed_operand_of_8_bits():
    """N is a multiple of 16 (Table 52), and the swizzle has no atoms of 32 bytes (9.7.16.10.1)."""
    plain = InstructionDescriptor("f32", "e4m3", "e4m3", 128, 24, transpose=(0, 1))
    fault_of(FLOATS, Product(0, MATRIX, MATRIX, plain), "kind::f8f6f4 [%0], %1,")
    paired = ScaledDescriptor("mxf8f6f4", "e4m3", "e4m3", 256, 48, transpose=(0, 1))
    fault_of(PAIRED, scaled("mxf8f6f4", "", paired.encode()), "mxf8f6f4.block_scale [%0], %1,")
    for n, b in ((24, MATRIX), (32, TURNED)):
        form = ScaledDescriptor("mxf8f6f4", "e4m3", "e4m3", 128, n, transpose=(0, 1))
        fault_of(SCALED, scaled("mxf8f6f4", "", form.encode(), b), "mxf8f6f4.block_scale [%0], %1,")


@pytest.mark.parametrize("name", ["e2m3", "e3m2", "e2m1"])
@pytest.mark.parametrize("which", [0, 1])
def test_small_floats_are_not_transposed(name: str, which: int):
    """`.kind::f8f6f4`: only elements of 8, 16 and 32 bits are in rows of M or N (Table 54)."""
    types = (name, "e4m3") if which == 0 else ("e4m3", name)
    form = InstructionDescriptor("f32", *types, 128, 32, transpose=(1 - which, which))
    fault_of(FLOATS, Product(0, MATRIX, MATRIX, form), "kind::f8f6f4 [%0], %1,")


@pytest.mark.parametrize("which", [0, 1])
def test_scale_factors_beyond_the_last_column(which: int):
    """128 rows have them in four columns, 256 in eight."""
    columns = [(509, 0), (0, 505)][which]
    form = ScaledDescriptor("mxf4", "e2m1", "e2m1", 128, 256)
    step = ScaledProduct(0, MATRIX, MATRIX, form, *columns)
    with pytest.raises(KernelFault, match=r"planted.cu:\d+ .*tensor memory"):
        SCALED.run([step], [np.zeros(32768, np.uint8)], [np.zeros((LANES, COLUMNS), np.uint32)])
