"""Which lanes do atomics at once, where several do, and that lanes with one address keep their order."""

from __future__ import annotations

import numpy as np
import pytest
from single_opcode import run_body
from warp_requests import Memory, native

from harness.emulator.abi import layout as at
from harness.emulator.codegen.functions.atomic_rounds import FIRST_OF_EACH

pytestmark = pytest.mark.compiles
LANES = np.arange(at.LANES)


def first_of_each(hosts: list[int], mask: int) -> int:
    seen: set[int] = set()
    chosen = 0
    for lane, host in enumerate(hosts):
        if mask >> lane & 1 and host not in seen:
            seen.add(host)
            chosen |= 1 << lane
    return chosen


@pytest.mark.parametrize("different", [1, 2, 3, 8, 31, 32, 1000])
def test_lanes_of_a_round_are_the_lowest_of_their_addresses(different: int) -> None:
    function, random = native(FIRST_OF_EACH, 2, "atomics"), np.random.default_rng(different)
    memory = Memory()
    for _ in range(20):
        hosts = 0x7F00_0000_0000 + 4 * random.integers(0, different, at.LANES)
        memory.warp[at.HOSTS : at.HOSTS + 256].view(np.int64)[:] = hosts
        for mask in (at.FULL_MASK, 0, 1 << 31, int(random.integers(1 << 32))):
            assert function(memory.pointers[1], mask) == first_of_each(hosts.tolist(), mask)


def test_addresses_that_differ_only_above_32_bits_take_two_rounds() -> None:
    function, memory = native(FIRST_OF_EACH, 2, "atomics"), Memory()
    memory.warp[at.HOSTS : at.HOSTS + 256].view(np.int64)[:] = 8 * (LANES % 16) + ((LANES // 16) << 32)
    assert function(memory.pointers[1], at.FULL_MASK) == 0xFFFF
    assert function(memory.pointers[1], 0xFFFF0000) == 0xFFFF0000


@pytest.mark.parametrize("sharing", [1, 3, 5, 16, 32])
def test_lanes_with_one_address_see_the_value_of_the_lane_before(sharing: int) -> None:
    """Lanes with the same remainder exchange their numbers at one address, which holds 99 before."""
    values, out = np.full(32, 99, np.uint32), np.zeros(32, np.uint32)
    run_body(
        f"""
        rem.u32 r1, tid, {sharing}; mul.wide.u32 q1, r1, 4; add.u64 q1, q1, values;
        mul.wide.u32 q2, tid, 4; add.u64 q2, q2, out;
        atom.global.exch.b32 r2, [q1], tid; st.global.u32 [q2], r2;
        """,
        {"values": values, "out": out},
    )
    assert out.tolist() == [lane - sharing if lane >= sharing else 99 for lane in range(32)]
    assert values.tolist() == [max(range(n, 32, sharing)) if n < sharing else 99 for n in range(32)]
