"""Which architectures run PTX for which targets (PTX ISA, `.target`)."""

from __future__ import annotations

import pytest

from harness.ptx.targets import Target

pytestmark = pytest.mark.compiles(False)


@pytest.mark.parametrize(
    ("target", "here", "runs"),
    [
        ("sm_80", "sm_90", True),
        ("sm_90", "sm_80", False),
        ("sm_90a", "sm_90", True),
        ("sm_90a", "sm_100", False),
        ("sm_100f", "sm_103", True),
        ("sm_100f", "sm_120", False),
        ("sm_103f", "sm_100", False),
    ],
)
def test_who_runs_what(target: str, here: str, runs: bool) -> None:
    wanted = Target.of(f".version 8.8\n  .target {target}, debug\n")
    device = Target.named(here)
    assert wanted is not None and wanted == Target.named(target) and device is not None
    assert wanted.runs_on(device) is runs


@pytest.mark.parametrize("name", ["sm_", "90", "sm_9000", "sm_90b", "compute_90"])
def test_what_is_no_target(name: str) -> None:
    assert Target.named(name) is None and Target.of(f".target {name}\n") is None
