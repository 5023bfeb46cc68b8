"""Boxes of tensors of one to five dimensions, at edges and beyond, with every swizzle: loaded, stored, combined."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from bulk_ptx import boxes
from bulk_reductions import TYPES, model
from lanes import exhaustive_unless
from operands import Array
from single_opcode import run_ptx

from harness.model.problem import ELEMENT_BYTES
from harness.model.tensor_map import PIECE_BYTES, TENSOR_TYPES, TensorMap

RNG = np.random.default_rng(41)
COUNT = 24
BOXES = {1: (), 2: (8,), 3: (4, 3), 4: (4, 2, 2), 5: (3, 2, 2, 2)}
"""Extents in all dimensions but the innermost."""
EXTENTS = (11, 5, 3, 4)
OF_MAPS = {
    "float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64", "int32": "s32", "int64": "s64",
    "uint8": "u8",
}  # fmt: skip


def tensor_map(dtype: str, rank: int, swizzle: int) -> TensorMap:
    """Rows are two boxes and a half long, but no whole number of pieces, and further apart than that."""
    size = ELEMENT_BYTES[dtype]
    inner = (swizzle or 64) // size
    extents = (2 * inner + inner // 2 + (size < PIECE_BYTES), *EXTENTS[: rank - 1])
    pitch = -(-extents[0] * size // PIECE_BYTES) * PIECE_BYTES + PIECE_BYTES
    strides = [pitch]
    for extent in extents[1:]:
        strides.append(strides[-1] * extent)
    return TensorMap("tensor", extents, tuple(strides[: rank - 1]), (inner, *BOXES[rank]), dtype, swizzle)


def words(count: int, size: int) -> Array:
    """So many elements as patterns, each another."""
    return (np.arange(count, dtype=np.uint64) + 1).astype(f"u{size}")


def room(tensor: TensorMap) -> int:
    """Elements of a buffer that the last row's last piece fits into."""
    pitches = (*tensor.strides, -(-tensor.extents[0] * TENSOR_TYPES[tensor.dtype] // PIECE_BYTES) * PIECE_BYTES)
    return (
        max(pitches[0], tensor.strides[-1] * tensor.extents[-1] if tensor.strides else 0) // TENSOR_TYPES[tensor.dtype]
    )


def corners(tensor: TensorMap, loaded: bool) -> Array:
    """Inside, across each edge and outside; where a box is stored, not before the tensor."""
    piece = PIECE_BYTES // TENSOR_TYPES[tensor.dtype]
    found = [
        RNG.integers(-tensor.box[0] - piece if loaded else 0, tensor.extents[0] + 2 * piece, COUNT) // piece * piece
    ]
    for box, extent in zip(tensor.box[1:], tensor.extents[1:]):
        found.append(RNG.integers(-box - 1 if loaded else 0, extent + 1, COUNT))
    places = np.stack(found, 1).astype(np.int32)
    places[0] = 0
    return np.ascontiguousarray(places)


def places(tensor: TensorMap, corner: Array, stored: bool) -> tuple[Array, Array]:
    """Of each element of a box, the innermost dimension last: its index in the buffer, and whether it is moved."""
    size, rank = TENSOR_TYPES[tensor.dtype], len(tensor.box)
    index, inside = np.zeros([1] * rank, np.int64), np.ones([1] * rank, np.bool_)
    for dimension, (box, extent) in enumerate(zip(tensor.box, tensor.extents)):
        place = (np.arange(box) + corner[dimension]).reshape([-1] + [1] * dimension)
        if stored and dimension == 0:
            extent = -(-extent * size // PIECE_BYTES) * PIECE_BYTES // size
        inside = inside & (place >= 0) & (place < extent)
        index = index + place * ((tensor.strides[dimension - 1] if dimension else size) // size)
    return index.ravel(), np.broadcast_to(inside, tensor.box[::-1]).ravel()


def swizzled(box: Array, span: int) -> Array:
    """The box, or boxes, as they lie in shared memory, from a multiple of 1024 bytes on."""
    pieces = np.ascontiguousarray(box).view(np.uint8).reshape(len(box), -1, PIECE_BYTES)
    places = np.arange(pieces.shape[1])
    found = np.empty_like(pieces)
    found[:, places ^ ((places >> 3) & (max(span, PIECE_BYTES) // PIECE_BYTES - 1))] = pieces
    return found.reshape(len(box), -1).view(box.dtype)


def run(action: str, tensor: TensorMap, buffer: Array, memory: Array, corner: Array, grid: int) -> None:
    size = math.prod(tensor.box) * TENSOR_TYPES[tensor.dtype]
    run_ptx(
        boxes(len(tensor.box), action),
        {"tensor": buffer, "memory": memory, "coordinates": corner},
        grid=grid,
        scalars=[tensor, np.uint32(size).tobytes(), np.uint32(COUNT).tobytes()],
    )


SHAPES = [("float32", rank, swizzle) for rank in BOXES for swizzle in (0, 32, 64, 128)]
SHAPES += [(dtype, 2, swizzle) for dtype in OF_MAPS if dtype != "float32" for swizzle in (0, 128)]
KEPT = [
    ("float32", 1, 0),
    ("float32", 2, 32),
    ("float16", 2, 128),
    ("float32", 3, 64),
    ("float32", 5, 128),
    ("uint8", 2, 0),
]


@pytest.mark.parametrize(("dtype", "rank", "swizzle"), exhaustive_unless(lambda shape: shape in KEPT, SHAPES))
def test_loads(dtype: str, rank: int, swizzle: int):
    """Zeros are what is outside."""
    tensor = tensor_map(dtype, rank, swizzle)
    buffer = words(room(tensor), TENSOR_TYPES[tensor.dtype])
    corner, memory = corners(tensor, loaded=True), np.zeros((COUNT, math.prod(tensor.box)), buffer.dtype)
    run("load", tensor, buffer, memory, corner, grid=6)
    expected = np.zeros_like(memory)
    for box, place in zip(expected, corner):
        index, inside = places(tensor, place, stored=False)
        box[inside] = buffer[index[inside]]
    assert np.array_equal(memory, swizzled(expected, swizzle))


@pytest.mark.parametrize(("dtype", "rank", "swizzle"), exhaustive_unless(lambda shape: shape in KEPT, SHAPES))
def test_stores(dtype: str, rank: int, swizzle: int):
    """One after the other. Of a row the last piece of 16 bytes is stored wholly, if the tensor has any of it."""
    tensor = tensor_map(dtype, rank, swizzle)
    buffer = words(room(tensor), TENSOR_TYPES[tensor.dtype])
    corner, given = corners(tensor, loaded=False), words(COUNT * math.prod(tensor.box), TENSOR_TYPES[tensor.dtype]) * 3
    given = given.reshape(COUNT, -1)
    expected = buffer.copy()
    for box, place in zip(given, corner):
        index, inside = places(tensor, place, stored=True)
        expected[index[inside]] = box[inside]
    run("store", tensor, buffer, swizzled(given, swizzle), corner, grid=1)
    assert np.array_equal(buffer, expected)


REDUCTIONS = [("add", dtype) for dtype in OF_MAPS if dtype not in ("uint8", "int64")]
REDUCTIONS += [(way, dtype) for way in ("min", "max") for dtype in ("float16", "bfloat16", "int32", "int64")]
REDUCTIONS += [(way, dtype) for way in ("and", "or", "xor") for dtype in ("int32",)]


@pytest.mark.parametrize(
    ("action", "dtype"), exhaustive_unless(lambda form: form in (("add", "float32"), ("min", "int64")), REDUCTIONS)
)
@pytest.mark.parametrize(("rank", "swizzle"), [(2, 0), (3, 128)])
def test_reductions(action: str, dtype: str, rank: int, swizzle: int):
    """Each element of the tensor with those of all boxes that it is in; there are subnormal floats, too."""
    tensor = tensor_map(dtype, rank, swizzle)
    kind = np.dtype(TYPES.get(OF_MAPS[dtype], np.uint8))
    count = COUNT * math.prod(tensor.box)
    if dtype.startswith("int"):
        buffer, given = (RNG.integers(np.iinfo(kind).min, np.iinfo(kind).max, n, kind) for n in (room(tensor), count))
    else:
        tiny = float(ml_dtypes.finfo(kind).smallest_normal)
        buffer, given = (
            (RNG.standard_normal(n) * np.where(RNG.random(n) < 0.1, tiny, 1.0)).astype(kind)
            for n in (room(tensor), count)
        )
    given = given.reshape(COUNT, -1)
    corner = corners(tensor, loaded=False)
    expected = buffer.copy()
    for box, place in zip(given, corner):
        index, inside = places(tensor, place, stored=True)
        expected[index[inside]] = model(f"{action}.{OF_MAPS[dtype]}", expected[index[inside]], box[inside])
    run(action, tensor, buffer, swizzled(given, swizzle), corner, grid=1)
    assert np.array_equal(buffer.view(np.uint8), expected.view(np.uint8))
