"""Tensor maps that host code wrote in a GPU's format, from words that host code of CuTe DSL 4.8 wrote."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from harness import Device
from harness.emulator.launch.hardware_tensor_maps import decode
from harness.model.tensor_map import TensorMap
from tests.emulator.box_movers import MOVE

TILED, RANK_AT, TYPE_AT, INTERLEAVE_AT, SWIZZLE_AT = 2, 4, 7, 11, 13
FLOAT16, FLOAT32, BFLOAT16 = 6, 7, 10
LEFT_OVER = b"\xab" * 68
"""What host code leaves behind the words."""


def image(words: list[int]) -> bytes:
    return struct.pack("<15I", *words) + LEFT_OVER


ROWS_OF_Q = [
    0, 0x7F00, 0x46332, 0x8, 0x800, 0x1000, 0, 0, 0x3F, 0xFF, 0x1, 0, 0, 0x3F000000, 0xBF,
]  # fmt: skip
"""Of Q (2, 256, 64) in float16 at address 0x7f0000000000, in boxes of 192 rows."""


def test_a_map_of_four_dimensions() -> None:
    expected = TensorMap("", (64, 256, 2, 1), (128, 0x8000, 0x10000), (64, 192, 1, 1), "float16", 128)
    assert decode(image(ROWS_OF_Q)) == (expected, 0x7F00_0000_0000)


def test_maps_of_four_bit_elements_and_of_their_scales() -> None:
    """A (512, 512) in e2m1, packed, in boxes of 128 rows; its scales (4, 8, 512 bytes), two in each element."""
    elements = [0, 0x7F00, 0x246592, 16, 0, 0, 0, 0, 511, 511, 0, 0, 0, 0xFF000000, 0x7F]
    scales = [0, 0x7F00, 0x400A2, 32, 256, 0, 0, 0, 255, 7, 3, 0, 0, 0xFF000000, 3]
    found = [decode(image(words)) for words in (elements, scales)]
    assert [each and each[0] for each in found] == [
        TensorMap("", (512, 512), (256,), (256, 128), "b4x16", 128),
        TensorMap("", (256, 8, 4), (512, 4096), (256, 4, 1), "uint16"),
    ]


@pytest.mark.parametrize(
    ("place", "word", "field", "value"),
    [
        (2, 0x46532, "dtype", "bfloat16"),
        (7, 0xF70, "strides", (128, 0x8000 + (7 << 36), 0x10000 + (15 << 36))),
        (2, 0x46332 & ~(7 << SWIZZLE_AT) | 1 << SWIZZLE_AT, "box", None),
        (2, 0x46332 & ~(7 << SWIZZLE_AT), "swizzle", 0),
    ],
)
def test_each_field(place: int, word: int, field: str, value: object) -> None:
    """The third row is a map that no GPU has: boxes of 128 bytes in a swizzle of 32."""
    words = [*ROWS_OF_Q]
    words[place] = word
    found = decode(image(words))
    assert (found is None) if value is None else found is not None and getattr(found[0], field) == value


@pytest.mark.parametrize(("place", "bits"), [(2, 1), (2, 1 << INTERLEAVE_AT), (2, 15 << TYPE_AT), (13, 1)])
def test_what_is_no_tiled_map(place: int, bits: int) -> None:
    """Another kind, interleaved, of an unknown type, with gaps between elements."""
    words = [*ROWS_OF_Q]
    words[place] |= bits
    assert decode(image(words)) is None


def test_a_kernel_copies_with_maps_of_a_gpus_format() -> None:
    device = Device()
    x = np.arange(8 * 16, dtype=np.float32).reshape(8, 16)
    source, target = device.array(x), device.array(np.zeros_like(x))
    header = TILED | 1 << RANK_AT | FLOAT32 << TYPE_AT
    maps = [
        image([a.address & 0xFFFFFFFF, a.address >> 32, header, 4, 0, 0, 0, 0, 15, 7, 0, 0, 0, 15 << 24, 7])
        for a in (source, target)
    ]
    device.launch(device.module(MOVE)["move"], 1, 32, (*maps, np.uint32(0)))
    assert np.array_equal(target.numpy(), x)
