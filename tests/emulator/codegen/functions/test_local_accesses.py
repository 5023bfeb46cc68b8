"""Requests of local memory, against the runtime's lane-by-lane functions, which Python can run as well."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from warp_requests import LOCAL_BYTES, SITE, Memory, native

from harness.emulator.abi import layout as at
from harness.emulator.codegen.functions.local_accesses import LOCAL_LOADS, LOCAL_STORES
from harness.emulator.codegen.vector_ir_builder import BITS
from harness.emulator.memory.copies import gather, scatter
from harness.emulator.memory.translation import translate_lanes

pytestmark = pytest.mark.compiles
LOCAL = at.SPACES["local"]
LANES = np.arange(at.LANES)
SHAPES = [(shape, load, LOCAL_STORES[shape]) for shape, load in LOCAL_LOADS.items()]


def requests(size: int) -> Iterator[tuple[npt.NDArray[np.int64], int]]:
    """Addresses and active lanes; some are invalid."""
    for mask in (at.FULL_MASK, 0xFFFF, 0x00FF0100, 0x55555555, 1 << 31, 0):
        for offset in (
            0,
            size,
            LOCAL_BYTES - size,
            LOCAL_BYTES - size + 1,
            LOCAL_BYTES,
            size // 2,
            1 << 31,
            (1 << 32) - 4,
        ):
            yield 0 * LANES + offset, mask
            yield 0 * LANES + (at.LOCAL_WINDOW << at.WINDOW_BITS) + offset, mask
        yield size * (LANES % 2), mask
        yield np.where(LANES == 8, size, 0), mask


@pytest.mark.parametrize(("shape", "load", "store"), SHAPES, ids=LOCAL_LOADS.values())
def test_loads_and_stores(shape: tuple[str, int], load: str, store: str) -> None:
    item, count = BITS[shape[0]] // 8, shape[1]
    for name, copy in ((load, gather), (store, scatter)):
        function = native(name, 5, "local accesses")
        for addresses, mask in requests(item * count):
            ours, expected = Memory(), Memory()
            for memory in (ours, expected):
                memory.request(addresses)
            failed = function(*ours.pointers, SITE, LOCAL, mask)
            assert failed == translate_lanes(*expected.pointers, SITE, LOCAL, mask, item * count, 0, 0)
            if not failed:
                copy(expected.pointers[1], mask, item, count)
            assert ours.outcome() == expected.outcome(), (addresses, hex(mask))
            for number in range(0 if failed else count):
                start = at.DATA + number * at.LANES * item
                assert ours.rows(start, item, mask) == expected.rows(start, item, mask), (addresses, hex(mask))
