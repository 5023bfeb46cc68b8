"""cp.async in programs that wait as they should: every size, cache operator, source size and way to count groups."""

from __future__ import annotations

import numpy as np
import pytest
from operands import Array
from single_opcode import run_body

RNG = np.random.default_rng(25)
DATA = RNG.integers(0, 256, (4, 32, 16), dtype=np.uint8)
SHARED = ".shared .align 16 .b8 ours[2048];"
PLACES = "mul.wide.u32 q1, tid, 16; add.u64 q2, q1, data; mov.u32 r2, ours; shl.b32 r1, tid, 4; add.u32 r1, r1, r2;"
"""q2: the lane's 16 bytes of the first part of `data`; r1: its 16 bytes of the first part of `ours`."""
FORMS = [("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)]


def copied(body: str, parts: int = 1, **geometry: int) -> Array:
    """What is in `ours` at the end, 16 bytes of each lane and part; it held 0x55 in every byte before `body`."""
    out = np.zeros((parts, 32, 16), dtype=np.uint8)
    lines = [SHARED, PLACES, "add.u64 q4, q1, out; mov.b64 q5, 0x5555555555555555;"]
    lines += [f"st.shared.v2.b64 [r1+{512 * part}], {{q5, q5}};" for part in range(parts)]
    lines += ["bar.sync 0;", body, "bar.sync 0;"]
    for part in range(parts):
        lines += [
            f"ld.shared.v2.b64 {{q6, q7}}, [r1+{512 * part}];",
            f"st.global.v2.b64 [q4+{512 * part}], {{q6, q7}};",
        ]
    run_body("\n".join(lines), {"data": DATA.copy(), "out": out}, **geometry)
    return out


def expected(size: int, wanted: Array | int) -> Array:
    """The first `wanted` bytes of each lane's data, zeros up to `size`, and what was there behind."""
    place = np.arange(16)
    left = np.broadcast_to(np.reshape(wanted, (-1, 1)), (32, 16))
    copy = np.where(place < left, DATA[0], 0)
    return np.where(place < size, copy, 0x55).astype(np.uint8)


@pytest.mark.parametrize(("cached", "size"), FORMS)
def test_every_size(cached: str, size: int):
    found = copied(f"cp.async.{cached}.shared.global [r1], [q2], {size}; cp.async.wait_all;")
    np.testing.assert_array_equal(found[0], expected(size, size))


@pytest.mark.parametrize(("cached", "size"), FORMS)
def test_hints_and_addresses_change_nothing(cached: str, size: int):
    lines = ["add.u64 q2, q2, 16; add.u32 r1, r1, 16; mov.b64 q8, 0x12F0000000000000;"]
    lines += [f"cp.async.{cached}.shared::cta.global.L2::128B [r1+-16], [q2+-16], {size};", "cp.async.wait_all;"]
    lines += ["sub.u32 r1, r1, 16;", f"cp.async.{cached}.shared.global.L2::256B [r1+512], [q2+496], {size};"]
    lines += [f"cp.async.{cached}.shared.global.L2::64B [r1+1024], [q2+1008], {size};", "cp.async.wait_all;"]
    found = copied("\n".join(lines), parts=3)
    for part in range(3):
        np.testing.assert_array_equal(found[part, :, :size], DATA[part, :, :size])
        assert (found[part, :, size:] == 0x55).all()


@pytest.mark.parametrize(("cached", "size"), FORMS)
def test_what_is_not_read_is_zero(cached: str, size: int):
    """A size of its own in every lane, from nothing to all."""
    text = f"cp.async.{cached}.shared.global [r1], [q2], {size}, r3; cp.async.wait_all;"
    found = copied(f"rem.u32 r3, tid, {size + 1}; {text}")
    np.testing.assert_array_equal(found[0], expected(size, np.arange(32) % (size + 1)))


@pytest.mark.parametrize("wanted", [0, 3, 8, 16])
def test_a_constant_size_of_the_source(wanted: int):
    found = copied(f"cp.async.cg.shared.global [r1], [q2], 16, {wanted}; cp.async.wait_all;")
    np.testing.assert_array_equal(found[0], expected(16, wanted))


@pytest.mark.parametrize(("cached", "size"), FORMS)
def test_a_source_that_is_ignored(cached: str, size: int):
    text = f"and.b32 r3, tid, 1; setp.ne.u32 p1, r3, 0; cp.async.{cached}.shared.global [r1], [q2], {size}, p1;"
    found = copied(f"{text} cp.async.wait_all;")
    np.testing.assert_array_equal(found[0], expected(size, np.where(np.arange(32) % 2, 0, size)))


def test_a_source_that_is_ignored_may_be_anywhere():
    text = "setp.lt.u32 p1, tid, 8; selp.b32 r3, 0, 16, p1; selp.b64 q2, 1, q2, p1;"
    found = copied(f"{text} cp.async.cg.shared.global [r1], [q2], 16, r3; cp.async.wait_all;")
    np.testing.assert_array_equal(found[0], expected(16, np.where(np.arange(32) < 8, 0, 16)))


def test_under_a_predicate():
    text = "setp.lt.u32 p1, tid, 8; @p1 cp.async.cg.shared.global [r1], [q2], 16; cp.async.wait_all;"
    found = copied(text)
    lanes = np.arange(32)[:, None]
    np.testing.assert_array_equal(found[0], np.where(lanes < 8, DATA[0], 0x55))


def test_what_no_lane_copies_takes_no_room():
    """More often than copies fit in flight."""
    loop = "mov.u32 r3, 0; AGAIN: @p1 cp.async.ca.shared.global [r1], [q2], 4; add.u32 r3, r3, 1;"
    found = copied(f"setp.gt.u32 p1, tid, 99; {loop} setp.lt.u32 p2, r3, 3000; @p2 bra AGAIN;")
    assert (found == 0x55).all()


def test_groups_end_in_order():
    lines = []
    for part in range(4):
        lines += [f"cp.async.cg.shared.global [r1+{512 * part}], [q2+{512 * part}], 16;", "cp.async.commit_group;"]
    lines += ["cp.async.wait_group 3; cp.async.wait_group 2; cp.async.wait_group 2; cp.async.wait_group 0;"]
    np.testing.assert_array_equal(copied("\n".join(lines), parts=4), DATA)


def test_lanes_on_different_paths():
    """Even lanes commit each of two copies by itself, odd lanes both together; then they wait by different counts."""
    one, two = (f"cp.async.cg.shared.global [r1+{512 * part}], [q2+{512 * part}], 16;" for part in (0, 1))
    commit = "cp.async.commit_group;"
    odd = f"{one} {two} {commit} cp.async.wait_group 0;"
    even = f"{one} {commit} {two} {commit} cp.async.wait_group 1; ld.shared.b64 q6, [r1]; cp.async.wait_all;"
    text = "and.b32 r3, tid, 1; setp.ne.u32 p1, r3, 0; @p1 bra ODD;"
    found = copied(f"{text} {even} st.shared.b64 [r1+520], q6; bra DONE; ODD: {odd} DONE:", parts=2)
    wanted = DATA[:2].copy()
    wanted[1, ::2, 8:] = DATA[0, ::2, :8]
    np.testing.assert_array_equal(found, wanted)


def test_a_ring_of_stages():
    """Three stages over eleven rounds: every round's data are there when the round begins."""
    out = np.zeros((11, 32), dtype=np.uint32)
    data = RNG.integers(0, 1 << 32, (11, 32), dtype=np.uint32)
    body = """
    .shared .align 16 .b8 ours[384];
    mul.wide.u32 q1, tid, 4; add.u64 q2, q1, data; add.u64 q3, q1, out; mov.u32 r2, ours; shl.b32 r1, tid, 2;
    add.u32 r1, r1, r2; mov.u32 r3, 0; mov.u32 r4, 0; mov.u32 r10, 0; mov.u32 r11, 0;
    ISSUE: setp.lt.u32 p1, r10, 11; rem.u32 r5, r10, 3; mad.lo.u32 r5, r5, 128, r1;
    @p1 cp.async.ca.shared.global [r5], [q2], 4;
    cp.async.commit_group; add.u64 q2, q2, 128; add.u32 r10, r10, 1;
    setp.lt.u32 p2, r10, 3; @p2 bra ISSUE;
    cp.async.wait_group 2;
    rem.u32 r5, r11, 3; mad.lo.u32 r5, r5, 128, r1; ld.shared.b32 r6, [r5]; st.global.b32 [q3], r6;
    add.u64 q3, q3, 128; add.u32 r11, r11, 1;
    setp.lt.u32 p3, r11, 11; @p3 bra ISSUE;
    """
    run_body(body, {"data": data, "out": out})
    np.testing.assert_array_equal(out, data)


def test_an_address_may_be_a_variable():
    out = np.zeros(4, dtype=np.uint32)
    data = np.arange(1, 5, dtype=np.uint32)
    text = "cp.async.ca.shared.global [ours+16], [data], 16; cp.async.wait_all;"
    run_body(
        f"{SHARED} {text} ld.shared.v4.b32 {{r1, r2, r3, r4}}, [ours+16]; st.global.v4.b32 [out], {{r1, r2, r3, r4}};",
        {"data": data, "out": out},
        block=1,
    )
    np.testing.assert_array_equal(out, data)
