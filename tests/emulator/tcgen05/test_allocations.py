"""Allocation of tensor memory, and who may access which part of it: PTX ISA, sections 9.7.16.7 and 9.7.16.8.1."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from planted_kernel import FORM, fault_of, values_of

from harness.support.errors import SandboxError

ISSUE = "if (t == 0) { PRODUCT(0); TRACK(1, &bar); }\nwait(&bar, 0); AFTER();"


def check_fault(body: str, line: int, *words: str, **kernel: Any) -> None:
    """A fault that names the line and says these words, in any case of letters."""
    told = fault_of(body, **kernel)
    assert f"planted.cu:{line} " in told, told
    for word in words:
        assert re.search(word, told, re.IGNORECASE), f"{word!r} is not in {told!r}"


@pytest.mark.parametrize("columns", [0, 16, 31, 48, 96, 513, 1024])
def test_numbers_of_columns(columns: int):
    """A power of two from 32 to 512."""
    check_fault(
        "if (w == 0) ALLOC(1, &more, given[0]);",
        2,
        "alloc",
        str(columns),
        "power of (two|2)|32, 64, 128, 256 or 512",
        given=[columns],
    )


def test_allocations_do_not_overlap():
    """Two allocations of one block and their contents."""
    body = """
if (w == 0) ALLOC(1, &more, 64);
ALL();
u32 second = more;
store1(mine, 0x3f800000); store1(second + (w << 21), 0x40000000); store1(mine + 63, 0x40400000); WRITTEN();
float x = __uint_as_float(load1(mine)), y = __uint_as_float(load1(second + (w << 21))); LOADED();
out[t] = __float_as_uint(x + 10 * y + (second % 32 ? 1000 : 0));
ALL();
if (w == 0) DEALLOC(1, second, 64);
"""
    assert (values_of(body) == 21).all()


def test_freed_columns_are_allocated_again():
    body = (
        "if (w == 0) { DEALLOC(1, base, 64); ALLOC(1, &place, 32); }\nALL();\nbase = place; mine = base + (w << 21);\n"
    )
    body += "store1(mine + 31, 0x3f800000); WRITTEN();\nREAD(31);"
    assert (values_of(body, end="ALL(); if (w == 0) DEALLOC(1, base, 32);") == 1).all()


def test_new_columns_are_not_zero():
    """Nothing is in tensor memory at first, not even zeros; and what was in it is gone when it is freed."""
    assert np.isnan(values_of("READ(0);")).all()
    body = "store1(mine, 0x3f800000); WRITTEN();\nALL();\nif (w == 0) { DEALLOC(1, base, 64); ALLOC(1, &place, 64); }\n"
    assert np.isnan(values_of(body + "ALL();\nbase = place; mine = base + (w << 21);\nREAD(0);")).all()


ALL_OF_IT = "if (w == 0) ALLOC(1, &place, 512); ALL();"


def test_an_allocation_waits_for_room():
    """Warp 1 waits until warp 0 has freed its columns."""
    body = """
if (w == 1) { ALLOC(1, &more, 512); }
if (w == 0) { __nanosleep(100); DEALLOC(1, base, 512); }
ALL();
base = more; mine = base + (w << 21);
store1(mine + 500, 0x3f800000); WRITTEN();
READ(500);
"""
    assert (values_of(body, start=ALL_OF_IT, end="ALL(); if (w == 0) DEALLOC(1, base, 512);") == 1).all()


def test_an_allocation_without_room():
    """Nobody frees: a deadlock, whose message says who waits where, and for what."""
    check_fault("if (w == 0) ALLOC(1, &more, 64);", 2, "64", "columns", start=ALL_OF_IT)


def test_an_allocation_after_the_permit_is_relinquished():
    check_fault("if (w == 0) RELINQUISH(1);\nif (w == 0) ALLOC(1, &more, 32);", 3, "relinquish")


@pytest.mark.parametrize(
    ("twice", "column", "columns"), [(1, 0, 64), (0, 0, 32), (0, 32, 64), (0, 32, 32), (0, 0, 48), (0, 0, 128)]
)
def test_columns_that_are_not_an_allocation(twice: int, column: int, columns: int):
    """Freed twice, in part, from the middle on, or a number that the allocation does not have."""
    free = "if (w == 0 && given[0]) DEALLOC(1, base, 64);\nif (w == 0) DEALLOC(1, base + given[1], given[2]);"
    check_fault(free, 3, "allocation", str(columns), end="", given=[twice, column, columns])


def test_a_leak():
    """All columns have to be freed before the kernel exits; the message names the allocation's line."""
    told = fault_of("if (w == 0) ALLOC(1, &more, 32);\nREAD(0);")
    assert "planted.cu:2 " in told and re.search("dealloc|free", told), told


@pytest.mark.parametrize(
    "access",
    [
        "u32 r = load1(base + ((w ^ 1) << 21)); LOADED(); out[t] = r;",
        "store1(base + (w + 1 << 21), t); WRITTEN();",
    ],
)
def test_a_warp_has_a_quarter_of_the_lanes(access: str):
    """Warp w of a warpgroup loads and stores lanes 32 w to 32 w + 31."""
    check_fault(access, 2, "lane", "warp")


OUTSIDE = [
    ("READ(given[0]);", 64), ("READ(given[0]);", 500), ("store1(mine + given[0], t); WRITTEN();", 64),
    (f"if (t == 0) MMA(1, f16, base + given[0], DESCRIBED(s), DESCRIBED(s + 1024), {FORM.encode():#x}u, 0);", 40),
    ("if (w == 0) { DEALLOC(1, base, 64); } ALL(); READ(given[0]);", 0),
]  # fmt: skip


@pytest.mark.parametrize(("access", "column"), OUTSIDE)
def test_columns_outside_of_an_allocation(access: str, column: int):
    """Loads, stores and products; also after the columns are freed."""
    wait = "if (t == 0) TRACK(1, &bar);\nwait(&bar, 0); AFTER();"
    check_fault(f"{access}\n{wait}", 2, "column|alloc", end="", given=[column])


def test_lanes_of_a_warp_agree():
    """All threads of a warp give tcgen05.ld the same address (section 9.7.16.8.3)."""
    check_fault("u32 r = load1(mine + (t & 1)); LOADED(); out[t] = r;", 2, "lane|thread", "address|operand|value")


def test_a_second_warpgroup_has_the_lanes_of_the_first():
    """Warp 4 + w reads what warp w wrote, and both read D."""
    body = """
if (t < 128) store1(mine, 1000 + t);
WRITTEN();
ALL();
u32 r = load1(base + (w % 4 << 21)); LOADED();
if (t >= 128) out[t - 128] = __float_as_uint((float)r);
"""
    assert np.array_equal(values_of(body, size=256)[0], 1000 + np.arange(128))


def test_one_kernel_has_one_group():
    """All instructions of a kernel have the same `.cta_group` (section 9.7.16.10.9.1), or it is not compiled."""
    with pytest.raises(SandboxError, match="cta_group"):
        values_of(f"{ISSUE}\nif (t == 0) TRACK(2, &bar);")
