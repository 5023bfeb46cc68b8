"""What a wrong claim is told about itself."""

from __future__ import annotations

import pytest

from harness.execution.traffic.claim_gap import claim_gap
from harness.execution.traffic.counts import SiteTraffic
from harness.model.traffic import Traffic
from harness.operations.attention.problem import Problem

PROBLEM = Problem(batch=1, heads=2, q_len=256, kv_len=256, head_dim=64)
SIZE = 2 * 256 * 64 * 4


def site(buffer: str, kind: str, line: int, times: int, spread: int = 1) -> SiteTraffic:
    """Accesses of a whole buffer, `times` over, in requests of 4 sectors that touch `spread` times as many."""
    sectors = times * SIZE // 32
    return SiteTraffic(buffer, kind, "folder/kernel.cu", line, sectors // 4, times * SIZE, spread * sectors, sectors)


SITES = (site("Q", "load", 7, 1), site("K", "load", 8, 4), site("V", "load", 9, 4), site("O", "store", 20, 1))
COUNTED = Traffic(9 * SIZE, SIZE)


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (Traffic(5 * SIZE, SIZE), "read: 524,288 bytes more than claimed; the claim leaves out K"),
        (Traffic(3 * SIZE, SIZE), "but the kernel moves K 4 times (kernel.cu:8) and V 4 times"),
        (Traffic(9 * SIZE, 2 * SIZE), "131,072 bytes fewer than claimed; the claim counts O (kernel.cu:20) one"),
        (Traffic(9 * SIZE - 4, SIZE), "the buffer with the most bytes is K, 524,288 bytes (kernel.cu:8): 4 sectors"),
    ],
)  # fmt: skip
def test_the_buffers_that_explain_a_difference_are_named(claim: Traffic, words: str):
    (sentence,) = claim_gap(claim, PROBLEM, SITES)
    assert words in sentence


def test_a_claim_of_bytes_used_is_told_the_rule_of_sectors():
    sites = (site("Q", "load", 7, 1, spread=8), *SITES[1:])
    (sentence,) = claim_gap(Traffic(9 * SIZE, SIZE), PROBLEM, sites)
    assert "whole sectors of 32 bytes" in sentence
    assert "Q (kernel.cu:7): 32 sectors per request, where 4 would hold its bytes" in sentence


def test_a_right_claim_has_no_gap():
    assert list(claim_gap(COUNTED, PROBLEM, SITES)) == []


def test_a_kernel_without_such_an_access_is_named():
    assert list(claim_gap(Traffic(0, 1), PROBLEM, ())) == [
        "written: 1 bytes fewer than claimed; the kernel has no such access"
    ]
