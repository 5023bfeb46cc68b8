"""Bytes and races as assertions."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import Problem, UsageError, assert_no_races, assert_traffic, at_most

PLUGINS = Path(__file__).parents[1] / "plugins"
PROBLEM = Problem(q_len=32, kv_len=32)
READ_BYTES = 3 * 2 * 32 * 64 * 4 * 9 // 8
"""Q, K and V of two heads, each once: one tile of FlashAttention-2 holds them, in which copies part every other row."""
WRITE_BYTES = 2 * 32 * 64 * 4 + 2 * 32 * 4
"""O and the log-sum-exp."""


def test_exact_bytes_and_bounds_hold() -> None:
    assert_traffic("fa2-cupy", PROBLEM, read=READ_BYTES, write=WRITE_BYTES)
    assert_traffic("fa2-cupy", seq_len=32, read=at_most(READ_BYTES), total=lambda count: count % 32 == 0)


def test_other_bytes_are_told_with_their_level() -> None:
    told = rf"fa2-cupy reads {READ_BYTES:,} bytes at the sectors level, not at most {READ_BYTES - 1:,}"
    with pytest.raises(AssertionError, match=told):
        assert_traffic("fa2-cupy", PROBLEM, read=at_most(READ_BYTES - 1))
    with pytest.raises(AssertionError, match=rf"fa2-cupy writes {WRITE_BYTES:,} bytes .* not 1$"):
        assert_traffic("fa2-cupy", PROBLEM, read=READ_BYTES, write=1)


def test_a_call_that_holds_nothing_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="needs a number of bytes: read="):
        assert_traffic("fa2-cupy", PROBLEM)
    with pytest.raises(UsageError, match="names 2 variants; name one"):
        assert_traffic("fa2-cupy,fa1-cupy", PROBLEM, read=1)


def test_races_stray_stores_and_refusals() -> None:
    assert_no_races("fa2-cupy", PROBLEM)
    with pytest.raises(
        AssertionError, match=r"stores-q-again: fail: input written \(4,096 times\): .*spoilt_inputs.py:20"
    ):
        assert_no_races("stores-q-again", PROBLEM, plugin=PLUGINS / "spoilt_inputs.py")
    with pytest.raises(AssertionError, match=r"unsupported: .* float32"):
        assert_traffic("stores-q-again", seq_len=32, dtype="float16", plugin=PLUGINS / "spoilt_inputs.py", read=1)


def test_findings_come_before_the_wrong_values_that_they_may_explain() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_no_races("warps-in-order", seq_len=32, plugin=PLUGINS / "hidden_mistakes.py")
    race, *_, wrong = str(caught.value).splitlines()
    assert race.startswith("warps-in-order: fail: RAW race (32 times): ") and "at line 15 races" in race
    assert "elements of O are off by more than their budget" in wrong
