"""Campaigns at their default settings against mistakes that small problems do not show."""

from __future__ import annotations

import functools

import fuzzed_variants
import pytest

from harness.studies.fuzz.campaign import run_campaign
from harness.studies.fuzz.settings import CampaignSettings

LAST_KEY = "j < keys"
PLANTED = {
    "more than 1,024 keys": (LAST_KEY, "j < keys - (N_k > 1024)", {"kv_len": 1025, "q_len": 1}),
    "more than four splits of 512": (LAST_KEY, "j < keys - (N_k > 4 * 512)", {"kv_len": 2049}),
    "head_dim above 255": ("c < d; ++c) o[c] = l", "c < d - (d > 255); ++c) o[c] = l", {"head_dim": 512, "q_len": 1}),
    "a group of 5": ("head / group", "(group == 5 ? 0 : head / group)", {"heads": 5, "kv_heads": 1, "q_len": 1}),
    "a square causal problem above 64 rows": (
        "i + N_k - N_q + 1",
        "i + N_k - N_q + 1 - (N_q == N_k && N_q > 64 && i > 0)",
        {"kv_len": 65, "q_len": 65},
    ),
    "row blocks beyond the 16th": (
        "if (i >= N_q) return;", "if (i >= N_q || blockIdx.x > 15) return;", {"q_len": 1025},
    ),
    "heads of all sequences beyond 1,056": (
        "if (i >= N_q) return;", "if (i >= N_q || blockIdx.y >= 1056) return;", {"q_len": 1},
    ),
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("bug", PLANTED)
def test_a_mistake_that_takes_a_size_is_found_and_shrunk_to_that_size(bug: str):
    old, new, smallest = PLANTED[bug]
    load = functools.partial(fuzzed_variants.edited, old, new)
    result = run_campaign("it", load, how=CampaignSettings(seed=1, shrink_seconds=120.0))
    assert result.failure is not None
    assert result.examples <= 200
    fields = result.failure.case.problem.to_fields()
    assert {name: fields[name] for name in smallest} == smallest
