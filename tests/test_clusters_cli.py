"""The command line with a variant whose blocks work together in clusters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cli import main

PLUGIN = str(Path(__file__).parent / "plugins" / "keys_over_a_cluster.py")
SMALL = ("--plugin", PLUGIN, "--q-len", "40", "--kv-len", "37", "--head-dim", "8")


@pytest.mark.thorough
def test_a_cluster_variant_passes_and_one_that_ends_early_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """Planned in a process of its own, run on the emulator, counted and watched as any other."""
    variants = ("--variants", "keys-over-a-cluster,hasty-cluster")
    assert main(("compare", *SMALL, *variants, "--sanitize", "--format", "json")) == 1
    right, hasty = json.loads(capsys.readouterr().out)["rows"]
    assert (right["variant"], right["verdict"], right["findings"]) == ("keys-over-a-cluster", "pass", [])
    assert (hasty["variant"], hasty["verdict"]) == ("hasty-cluster", "error")
    assert "shared memory of block" in hasty["reason"] and "which has ended at" in hasty["reason"]


@pytest.mark.thorough
def test_the_listing_says_how_large_the_clusters_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("show", "keys-over-a-cluster", *SMALL)) == 0
    assert "2 x 2 x 4 = 16 blocks in clusters of 1 x 1 x 4" in capsys.readouterr().out
