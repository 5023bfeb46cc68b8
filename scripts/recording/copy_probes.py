"""Asynchronous copies in many arrangements: what a GPU counts of each is recorded, and the emulator is held against it.

A plugin: each probe is a variant that copies from K, or to a buffer as large, and writes no answer. One warp copies
with `cp.async`, a lane's bytes from and to places that a few numbers say; one thread copies with `cp.async.bulk`, a run
of bytes or boxes of a tensor. Each copy is repeated at further places, so that nothing is found in a cache.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cupy
import numpy as np

from harness import Buffer, Launch, Plan, Problem, Registry, TensorMap, Variant

PROBLEM = Problem(heads=1, q_len=1, kv_len=8192, head_dim=64)
"""K has 2 MiB."""
REPEATS = 32
"""Repetitions of each copy."""
STRIDE_BYTES = 32768
"""From a copy to its next repetition."""
TILE_BYTES = 32768
"""Shared memory of a block."""
PIECE_BYTES = {"copy_4": 4, "copy_8": 8, "copy_16": 16, "copy_16_past_l1": 16}
"""Kernels of one warp, and what a lane copies at once."""
BULK_KERNELS = ("copy_run", "store_run", "copy_boxes", "store_boxes")
SOURCE = f"#define STRIDE {STRIDE_BYTES}\n" + Path(__file__).with_suffix(".cu").read_text()
KERNELS = {name: cupy.RawKernel(SOURCE, name, options=("-arch=sm_90",)) for name in (*PIECE_BYTES, *BULK_KERNELS)}
ALL_LANES = 0xFFFFFFFF
SWIZZLES = (0, 32, 64, 128)


@dataclass(frozen=True)
class Box:
    """What is copied of a tensor of rows of 16-bit elements; all in bytes."""

    width: int
    """Bytes of a row of the tensor."""
    stride: int
    """From one of its rows to the next."""
    columns: int
    """Bytes of a row of the box."""
    swizzle: int


@dataclass(frozen=True)
class Probe:
    """One launch of one of the kernels."""

    kernel: str
    args: tuple[int, ...]
    """After the buffer, or the tensor map."""
    box: Box | None = None

    def plan(self) -> Plan:
        """The launch of one warp, and what it stores to."""
        masks = (6, 7) if self.kernel in PIECE_BYTES else ()
        args = (np.uint32(arg) if place in masks else np.int32(arg) for place, arg in enumerate(self.args))
        target = Buffer("target", (PROBLEM.kv_len * PROBLEM.head_dim,), "float32")
        outer = target.name if self.kernel.startswith("store") else "K"
        first: str | TensorMap = outer
        if self.box is not None:
            rows = self.args[2]
            extents, box = (self.box.width // 2, rows * REPEATS), (self.box.columns // 2, rows)
            first = TensorMap(outer, extents, (self.box.stride,), box, "bfloat16", self.box.swizzle)
        launch = Launch(KERNELS[self.kernel], (1,), (32,), (first, *args), shared_bytes=TILE_BYTES)
        return Plan((launch,), (target,) if outer == target.name else ())


def probes() -> list[Probe]:
    """All that are recorded, in order; always the same ones."""
    return [*_rows(), *_scattered(), *_runs(), *_boxes()]


def _rows() -> Iterator[Probe]:
    """Rows of one length that lie so far apart here and so far apart there, from any start; some with a swizzle."""
    draw = random.Random(1)
    for kernel, count in (("copy_16_past_l1", 170), ("copy_16", 60), ("copy_8", 60), ("copy_4", 50)):
        size = PIECE_BYTES[kernel]
        for number in range(count):
            columns = draw.choice([2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 18, 20, 24, 32])
            source_row = (columns + draw.choice([0, 0, 0, 1, 2])) * size
            swizzled = draw.random() < 0.35
            pitch = (columns + draw.choice([0, 1, 1, 2, 4])) * size
            target_row = -(-columns * size // 128) * 128 if swizzled else pitch
            start = draw.choice([0, 0, 1, 2, 3, 5]) * size, 0 if swizzled else draw.choice([0, 0, 1, 2, 4]) * size
            active = ALL_LANES if number % 4 else draw.getrandbits(32) | 1
            shortened, wanted = (0, size) if number % 5 else (draw.getrandbits(32), draw.choice([0, size // 2]))
            places = (int(swizzled), columns, source_row, target_row, *start)
            yield Probe(kernel, (*places, active, shortened, wanted, REPEATS))


def _scattered() -> Iterator[Probe]:
    """Pieces from and to anywhere in 64 of them."""
    draw = random.Random(2)
    for kernel, count in (("copy_16_past_l1", 40), ("copy_16", 15), ("copy_8", 20), ("copy_4", 15)):
        for _ in range(count):
            source, target = draw.randrange(0, 64), draw.randrange(1, 64, 2)
            yield Probe(kernel, (2, source, target, 0, 0, 0, ALL_LANES, 0, PIECE_BYTES[kernel], REPEATS))


def _runs() -> Iterator[Probe]:
    """Runs of bytes."""
    draw = random.Random(3)
    for kernel, count in (("copy_run", 50), ("store_run", 40)):
        for _ in range(count):
            outer, inner = 16 * draw.randrange(16), 16 * draw.randrange(16)
            yield Probe(kernel, (outer, inner, 16 * draw.choice([1, 2, 3, 5, 8, 9, 16, 33, 64]), REPEATS))


def _boxes() -> Iterator[Probe]:
    """Boxes of rows of 32 to 256 bytes, as wide as a swizzle or narrower, in the middle, at the ends and beyond."""
    draw = random.Random(4)
    for width in (80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 256):
        for swizzle, columns in ((128, 128), (64, 64), (32, 32), (0, 128), (0, 64), (0, 48), (0, width)):
            for column in (0, columns // 2) if columns < width else (0,):
                rows = draw.choice([8, 16, 64 if columns <= 256 else 32])
                args = (column, draw.choice([0, 0, 1, 3]), rows, columns * rows, REPEATS)
                yield Probe("copy_boxes", args, Box(width, width, columns, swizzle))
    for kernel, count in (("copy_boxes", 40), ("store_boxes", 60)):
        for number in range(count):
            width, swizzle = 16 * draw.randrange(2, 17), draw.choice(SWIZZLES)
            columns = swizzle or 16 * draw.randrange(1, 13)
            rows = draw.choice([8, 16])
            column, row = 8 * draw.randrange(-3 if kernel == "copy_boxes" else 0, width // 16), draw.choice([0, 1, 5])
            if number % 4 == 0:
                row += draw.choice([2 * rows, REPEATS * rows])  # the last ones are beyond the end
            elif number % 4 == 1 and kernel == "copy_boxes":
                row -= draw.choice([3, 2 * rows])
            stride = width + 16 * draw.randrange(0, 9)
            yield Probe(kernel, (column, row, rows, columns * rows, REPEATS), Box(width, stride, columns, swizzle))


def register(registry: Registry) -> None:
    """Add a variant for each probe, by its number."""
    for number, probe in enumerate(probes()):
        plan = probe.plan()
        registry.add(Variant(name=f"copy-{number}", plan=lambda problem, plan=plan: plan, idea=str(probe)))
