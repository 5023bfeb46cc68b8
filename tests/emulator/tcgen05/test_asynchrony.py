"""What a user sees if a wait or a fence of `tcgen05` is missing: PTX ISA, section 9.7.16.6."""

from __future__ import annotations

import numpy as np
import pytest
from planted_kernel import FORM, SUM, fault_of, values_of

ISSUE = "if (t == 0) { PRODUCT(0); TRACK(1, &bar); }"
WAITED = "wait(&bar, 0); AFTER();"


@pytest.mark.parametrize(
    "issue", [ISSUE, "if (w == 1 && elected()) PRODUCT(0);\nif (w == 1 && elected()) { TRACK(1, &bar); }"]
)
def test_a_product_that_is_waited_for(issue: str):
    """One thread issues and commits, whichever it is."""
    assert (values_of(f"{issue}\n{WAITED}\nREAD(7);") == SUM).all()


def test_each_thread_issues_a_product_of_its_own():
    """tcgen05.mma has single-thread semantics: without an election, a warp issues 32 products."""
    body = f"if (t == 0) PRODUCT(0);\nif (w == 0) PRODUCT(1);\nif (t == 0) TRACK(1, &bar);\n{WAITED}\nREAD(0);"
    body = body.replace("if (t == 0) TRACK(1, &bar);", "__syncwarp(); if (w == 0) TRACK(1, &bar);")
    assert (values_of(body.replace("&bar", "&many"), start=_WITH_MANY) == 33 * SUM).all()


_WITH_MANY = """__shared__ u64 many; if (t == 0) init(&many, 32);
  if (w == 0) ALLOC(1, &place, 64); ALL();"""


@pytest.mark.parametrize("wait", range(3))
def test_an_accumulator_that_is_read_before_the_commit(wait: int):
    """No wait, a barrier, or a wait for the phase before: D is NaN as long as no warp waits for the commit."""
    waits = "if (given[0] == 1) ALL();\nif (given[0] == 2) { wait(&bar, 1); AFTER(); }"
    assert np.isnan(values_of(f"{ISSUE}\n{waits}\nREAD(0);\nALL();\n{WAITED}", given=[wait])).all()


LATER = "ALL();\nif (t == 0) TRACK(1, &other);\nwait(&other, 0); AFTER();"
"""Completes what thread 0 has issued."""


def test_a_product_that_is_not_committed():
    """The commit does not cover what the thread issues after it."""
    body = f"if (t == 0) {{ PRODUCT(0); TRACK(1, &bar); PRODUCT(1); }}\n{WAITED}\nREAD(0);\n{LATER}"
    assert not (values_of(body) == SUM).any()


def test_a_commit_covers_products_of_its_thread_only():
    """Thread 32's commit completes at once, and thread 0's product is not done."""
    body = f"if (t == 0) PRODUCT(0);\nALL();\nif (t == 32) TRACK(1, &bar);\n{WAITED}\nREAD(0);\n{LATER}"
    assert np.isnan(values_of(body)).all()


def test_an_accumulator_that_is_freed_in_flight():
    """The message names the line of the deallocation and that of the product."""
    told = fault_of(f"{ISSUE}\nALL();\nif (w == 0) DEALLOC(1, base, 64);", end="")
    assert "planted.cu:4 " in told and "planted.cu:2 " in told, told


@pytest.mark.parametrize("word", [0, 1024])
def test_factors_that_are_overwritten_before_the_commit(word: int):
    """A and B are read until the commit is waited for."""
    overwrite = "__syncthreads(); s[given[0] + t] = 0; TO_ASYNC(); __syncthreads();"
    body = f"{ISSUE}\nif (given[1]) {{ {overwrite} }}\n{WAITED}\nif (!given[1]) {{ {overwrite} }}\nREAD(0);"
    assert not (values_of(body, given=[word, 1]) == SUM).all()
    assert (values_of(body, given=[word, 0]) == SUM).all()


def test_a_store_that_is_not_waited_for():
    """tcgen05.st is asynchronous until wait::st."""
    body = "store1(mine, 0x3f800000);\n{}\nREAD(0);"
    assert (values_of(body.format("WRITTEN();")) == 1).all()
    assert not (values_of(body.format("")) == 1).any()


def test_a_register_that_is_used_before_the_load_is_waited_for():
    """A true dependency of registers is respected without wait::ld (section 9.7.16.6.4.5)."""
    body = f"{ISSUE}\n{WAITED}\nout[t] = load1(mine);\nLOADED();"
    assert (values_of(body) == SUM).all()


A_COLUMN = 40
"""Where A is in tensor memory."""
MULTIPLY = f"""asm volatile("{{\\n.reg .pred p;\\nsetp.ne.u32 p, %0, %0;\\n"
  "tcgen05.mma.cta_group::1.kind::f16 [%0], [%1], %2, %3, p;\\n}}"
  :: "r"(base), "r"(base + {A_COLUMN}), "l"(DESCRIBED(s + 1024)), "r"({FORM.encode():#x}u) : "memory");"""
COPY = f"""asm volatile("tcgen05.cp.cta_group::1.128x256b [%0], %1;"
  :: "r"(base + {A_COLUMN}), "l"(DESCRIBED(s)) : "memory");"""


def test_a_copy_is_ordered_before_a_product():
    """tcgen05.cp writes A into tensor memory, whose product needs no wait (section 9.7.16.6.2)."""
    body = f"if (t == 0) {{ {COPY}\n{MULTIPLY} TRACK(1, &bar); }}\n{WAITED}\nREAD(3);"
    assert (values_of(body) == SUM).all()


def test_a_copy_that_is_read_before_the_commit():
    body = f"if (t == 0) {{ {COPY} TRACK(1, &bar); }}\nALL();\nREAD({A_COLUMN});\nALL();\n{WAITED}"
    assert not (values_of(body).view(np.uint32) == 0x3C003C00).any()


@pytest.mark.parametrize("waits", [1, 0])
def test_a_factor_that_other_warps_store(waits: int):
    """A comes from the registers of four warps, which wait for their stores before they meet the thread that issues."""
    store = f"for (int i = 0; i < 8; ++i) store1(mine + {A_COLUMN} + i, 0x3c003c00);"
    body = f"{store}\nif (given[0]) WRITTEN();\nALL();\n"
    body += f"if (t == 0) {{ {MULTIPLY} TRACK(1, &bar); }}\n{WAITED}\nREAD(0);\nWRITTEN();"
    found = values_of(body, given=[waits])
    assert (found == SUM).all() if waits else np.isnan(found).any()


def test_each_commit_completes_what_was_issued_before_it():
    """Of two accumulators the second is still in flight when the first is waited for."""
    second = f"MMA(1, f16, base + 32, DESCRIBED(s), DESCRIBED(s + 1024), {FORM.encode():#x}u, 0);"
    body = f"""if (t == 0) {{ PRODUCT(0); TRACK(1, &bar); {second} TRACK(1, &other); }}
{WAITED}
u32 x = load1(mine), y = load1(mine + 32); LOADED();
ALL();
wait(&other, 0); AFTER();
u32 z = load1(mine + 32); LOADED();
out[t] = x == z && isnan(__uint_as_float(y)) ? z : 0;"""
    assert (values_of(body) == SUM).all()


def test_an_accumulator_in_turns():
    """Two rounds of products and loads: the mbarrier has a phase for each."""
    body = f"{ISSUE}\n{WAITED}\nREAD(0);\nALL();\nif (t == 0) {{ PRODUCT(1); PRODUCT(1); TRACK(1, &bar); }}\n"
    assert (values_of(body + "wait(&bar, 1); AFTER();\nREAD(0);") == 3 * SUM).all()


def test_a_commit_that_never_comes():
    """The message names the line that waits."""
    told = fault_of(f"if (t == 0) PRODUCT(0);\n{WAITED}\nREAD(0);")
    assert "planted.cu:3" in told and "mbarrier" in told, told
