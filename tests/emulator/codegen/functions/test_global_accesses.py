"""Requests of global memory, against the runtime's lane-by-lane functions, which Python can run as well."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from warp_requests import BUFFER_BYTES, SITE, Memory, native, native_access

from harness.emulator.abi import layout as at
from harness.emulator.codegen.functions.global_accesses import GLOBAL_LOADS, GLOBAL_STORES, TRANSLATE
from harness.emulator.codegen.vector_ir_builder import BITS
from harness.emulator.memory.copies import gather, scatter
from harness.emulator.memory.translation import translate_lanes

pytestmark = pytest.mark.compiles
LANES = np.arange(at.LANES)
GLOBAL, WRITTEN = at.SPACES["global"], at.SPACES["written"]


def offsets(size: int) -> Iterator[npt.NDArray[np.int64]]:
    """Offsets of 32 lanes in a buffer, of which some are invalid."""
    random = np.random.default_rng(size)
    most = BUFFER_BYTES // size
    yield 0 * LANES + 5 * size
    yield size * LANES
    yield size * LANES[::-1]
    yield size * (LANES + most - at.LANES)  # the last that fit
    yield size * (LANES + most - at.LANES + 1)  # the last lane is outside
    yield size * (LANES - 1)  # the first lane is outside
    yield size * (LANES // 16)
    yield size * (LANES % 16 * 7)
    yield size * (LANES % 8 * 5 + LANES // 8)
    yield size * (LANES % 2)
    yield size * LANES + size // 2  # misaligned
    yield size * random.permutation(LANES) * 3
    for spread in (4, 16, most):
        yield size * random.integers(0, spread, at.LANES)
    yield np.where(LANES == 9, BUFFER_BYTES, size * LANES)
    yield np.where(LANES == 9, 1 << 40, size * LANES)


def requests(size: int) -> Iterator[tuple[npt.NDArray[np.int64], int]]:
    """Addresses and active lanes."""
    random = np.random.default_rng(size)
    for offset in offsets(size):
        first = at.buffer_address(1) + offset.astype(np.int64)
        masks = (at.FULL_MASK, 0xFFFF, 0xFFFF0000, 0x55555555, 1 << 9, 0, *random.integers(0, 1 << 32, 2).tolist())
        for mask in masks:
            yield first, mask
        yield np.where(LANES % 3 == 0, first - at.buffer_address(1) + at.buffer_address(0), first), at.FULL_MASK
    yield at.buffer_address(2) + 4 * LANES, at.FULL_MASK  # no such buffer
    yield 4 * LANES, at.FULL_MASK


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_translation(size: int) -> None:
    function = native(TRANSLATE, 6)
    for addresses, mask in requests(size):
        ours, expected = Memory(), Memory()
        ours.request(addresses)
        expected.request(addresses)
        failed = function(*ours.pointers, SITE, GLOBAL, mask, size)
        assert failed == translate_lanes(*expected.pointers, SITE, GLOBAL, mask, size, 0, 0)
        assert ours.outcome() == expected.outcome(), (addresses, hex(mask))
        if not failed:
            origins = [(m.rows(at.HOSTS, 8, mask), [b.ctypes.data for b in m.buffers]) for m in (ours, expected)]
            found, wanted = ([_place(row, starts) for row in rows] for rows, starts in origins)
            assert found == wanted


def _place(row: bytes, starts: list[int]) -> tuple[int, int]:
    """Buffer and offset of a host address."""
    address = int.from_bytes(row, "little")
    return next((n, address - start) for n, start in enumerate(starts) if 0 <= address - start < BUFFER_BYTES)


@pytest.mark.parametrize(("shape", "name"), GLOBAL_LOADS.items(), ids=GLOBAL_LOADS.values())
def test_loads(shape: tuple[str, int], name: str) -> None:
    item, count = BITS[shape[0]] // 8, shape[1]
    function = native_access(name, shape)
    for addresses, mask in requests(item * count):
        ours, expected = Memory(), Memory()
        ours.request(addresses)
        expected.request(addresses)
        failed = function(*ours.pointers, SITE, GLOBAL, mask)
        assert failed == translate_lanes(*expected.pointers, SITE, GLOBAL, mask, item * count, 0, 0)
        assert ours.outcome() == expected.outcome(), (addresses, hex(mask))
        if failed:
            continue
        gather(expected.pointers[1], mask, item, count)
        for number in range(count):
            start = at.DATA + number * at.LANES * item
            assert ours.rows(start, item, mask) == expected.rows(start, item, mask), (addresses, hex(mask))


@pytest.mark.parametrize(("shape", "name"), GLOBAL_STORES.items(), ids=GLOBAL_STORES.values())
def test_stores(shape: tuple[str, int], name: str) -> None:
    """Of lanes that store to one place, the highest wins."""
    item, count = BITS[shape[0]] // 8, shape[1]
    function = native_access(name, shape)
    for addresses, mask in requests(item * count):
        ours, expected = Memory(), Memory()
        ours.request(addresses)
        expected.request(addresses)
        failed = function(*ours.pointers, SITE, WRITTEN, mask)
        assert failed == translate_lanes(*expected.pointers, SITE, WRITTEN, mask, item * count, 0, 0)
        if not failed:
            scatter(expected.pointers[1], mask, item, count)
        assert ours.outcome() == expected.outcome(), (addresses, hex(mask))


def test_offsets_beyond_31_bits() -> None:
    """Vector code has 32-bit offsets; here only sizes are large, since `translate` accesses no data."""
    function = native(TRANSLATE, 6)
    for size_bytes in (1 << 31, (1 << 31) + 4, 1 << 33):
        ours, expected = Memory(), Memory()
        for memory in (ours, expected):
            memory.table[1, 1] = size_bytes
            memory.request(at.buffer_address(1) + size_bytes - 128 + 4 * LANES)
            failed = function if memory is ours else lambda *request: translate_lanes(*request, 0, 0)
            assert failed(*memory.pointers, SITE, GLOBAL, at.FULL_MASK, 4) == 0
        assert ours.counters.tolist() == expected.counters.tolist()
        hosts = ours.warp[at.HOSTS : at.HOSTS + 256].view(np.int64) - ours.buffers[1].ctypes.data
        assert hosts.tolist() == (size_bytes - 128 + 4 * LANES).tolist()
