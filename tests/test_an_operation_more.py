"""An operation more is one folder in harness/operations and one in variants, and nothing else is touched."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOY = ROOT / "tests" / "toy_operation"
OPERATION = ("--operation", "row-sums")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree, and the toy in it."""
    root = tmp_path_factory.mktemp("copy") / "repository"
    for folder in ("harness", "variants"):
        shutil.copytree(ROOT / folder, root / folder)
    before = {path.relative_to(root) for path in root.rglob("*")}
    shutil.copytree(TOY / "operations", root / "harness" / "operations", dirs_exist_ok=True)
    shutil.copytree(TOY / "variants", root / "variants", dirs_exist_ok=True)
    added = {path.relative_to(root) for path in root.rglob("*")} - before
    assert {path.parts[:3] if path.parts[0] == "harness" else path.parts[:2] for path in added} == {
        ("harness", "operations", "row_sums"),
        ("variants", "row_sums"),
    }
    return root


def harness(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def test_it_is_listed(copy: Path):
    ran = harness(copy, "list", "--format", "json")
    assert ran.returncode == 0, ran.stderr
    listed = {variant["name"]: variant["operation"] for variant in json.loads(ran.stdout)["variants"]}
    assert listed["row-sums"] == "row-sums" and listed["fa2-cupy"] == "attention"


def test_it_is_compared_and_counted(copy: Path):
    ran = harness(copy, "compare", *OPERATION, "--rows", "70", "--columns", "33", "--format", "json")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["problem"] == {"rows": 70, "columns": 33}
    (row,) = found["rows"]
    assert (row["variant"], row["verdict"], row["compulsory_bytes"]) == ("row-sums", "pass", 4 * 70 * 34)
    assert row["read_bytes"] >= 4 * 70 * 33
    assert not any(key.startswith("lse") for key in row)


@pytest.mark.exhaustive
def test_a_wrong_kernel_of_it_is_found_by_compare_and_by_fuzz(copy: Path, tmp_path: Path):
    text = (TOY / "variants" / "row_sums" / "a_thread_per_row.py").read_text()
    wrong = text.replace("j < columns;", "j < columns - (columns > 5);").replace('name="row-sums"', 'name="wrong"')
    (tmp_path / "wrong.py").write_text(wrong)
    ran = harness(copy, "compare", *OPERATION, "--plugin", str(tmp_path / "wrong.py"), "--variants", "wrong")
    assert ran.returncode == 1 and "fail" in ran.stdout
    ran = harness(copy, "fuzz", "wrong", "--plugin", str(tmp_path / "wrong.py"), "--examples", "30", "--seed", "1")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert '--replay \'{"operation": "row-sums"' in ran.stdout


def test_it_is_fuzzed_and_its_traffic_is_shown(copy: Path):
    ran = harness(copy, "fuzz", "row-sums", "--examples", "9", "--seed", "1", "--format", "json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (campaign,) = json.loads(ran.stdout)["campaigns"]
    assert (campaign["verdict"], campaign["examples"]) == ("pass", 9)
    ran = harness(copy, "traffic", "row-sums", *OPERATION, "--format", "json")
    assert ran.returncode == 0, ran.stderr
    assert {buffer["name"] for buffer in json.loads(ran.stdout)["buffers"]} == {"X", "y"}
    ran = harness(copy, "traffic", *OPERATION, "--sweep", "columns=32..128", "--format", "csv")
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout.splitlines()) == 1 + 3
