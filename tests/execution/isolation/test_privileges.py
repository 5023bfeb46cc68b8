"""A planner reaches neither the memory nor the descriptors of the process that judges it, as root or not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.compiles(False)

ROOT = Path(__file__).resolve().parents[3]
PLUGIN = ROOT / "tests" / "plugins" / "reaches_for_its_judge.py"
SMALL = ["--heads", "1", "--q-len", "4", "--kv-len", "6", "--head-dim", "4", "--device", "emulator"]


def row_of(variant: str, **more: object) -> dict[str, str]:
    """What `compare` says in a process of its own: the test's own could not be made attachable again."""
    command = ["compare", *SMALL, "--plugin", str(PLUGIN), "--variants", variant, "--format", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "harness", *command], cwd=ROOT, text=True, stdout=subprocess.PIPE, **more  # type: ignore[call-overload]
    )  # fmt: skip
    assert done.returncode == 1
    (row,) = json.loads(done.stdout)["rows"]
    assert row["verdict"] == "error"
    return row


def test_no_way_leads_into_the_judge_or_the_server():
    assert "open: none" in row_of("reaches")["reason"]


def test_a_planner_inherits_no_descriptor_of_the_judge(tmp_path: Path):
    secret = tmp_path / "results.sqlite"
    with secret.open("w") as file:
        os.set_inheritable(file.fileno(), True)
        reason = row_of("lists", pass_fds=(file.fileno(),), stdin=file)["reason"]
    assert "descriptors: ['/dev/null', " in reason
    assert str(secret) not in reason
    mine = re.sub(r"(pipe|socket):\[\d+\]", r"\1", reason)
    assert not re.search(r"\.(sqlite|db|so|pyc)\b", mine)
