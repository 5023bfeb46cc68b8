"""The GitHub Action: its form is that of composite actions, and what it runs does what its page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
ACTION = ROOT / ".ci" / "action"
PAGE = (ROOT / "docs" / "continuous-integration.md").read_text()
TEXT = (ACTION / "action.yml").read_text()
CHOSEN = "wrong-claim::claim or wrong-claim::inputs or test_own"
FOUND = yaml.safe_load(TEXT)


def test_it_has_what_a_composite_action_must_have() -> None:
    # docs.github.com, "Metadata syntax for GitHub Actions": name, description and runs are required; of a composite
    # action runs.steps, and a shell for each step that runs something.
    assert (
        {"name", "description", "runs"} <= set(FOUND) <= {"name", "author", "description", "inputs", "outputs", "runs"}
    )
    assert FOUND["runs"]["using"] == "composite"
    for step in FOUND["runs"]["steps"]:
        assert ("run" in step) != ("uses" in step), step
        assert "shell" in step if "run" in step else re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"]), step
        assert set(step) <= {"name", "id", "if", "run", "shell", "uses", "with", "env", "working-directory"}
    for name, entry in FOUND["inputs"].items():
        assert re.fullmatch(r"[a-z][a-z-]*", name)
        assert entry["description"] and isinstance(entry["required"], bool)
        assert ("default" in entry) != entry["required"], name
        assert isinstance(entry.get("default", ""), str), f"{name}: inputs are texts"
    for entry in FOUND["outputs"].values():
        assert entry["description"] and entry["value"]


def test_every_input_is_used_and_stands_in_the_page() -> None:
    used = set(re.findall(r"\$\{\{ inputs\.([\w-]+)", TEXT))
    assert used == set(FOUND["inputs"])
    assert all(f"| `{name}` |" in PAGE for name in FOUND["inputs"])
    # An input that is put into a script is a part of the script, whatever is in it.
    assert not any("${{" in step.get("run", "") for step in FOUND["runs"]["steps"])
    ids = {step.get("id") for step in FOUND["runs"]["steps"]}
    assert set(re.findall(r"steps\.(\w+)\.outputs", TEXT)) <= ids


def test_the_workflow_that_the_page_shows_is_one() -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (shown,) = (block for block in blocks if "jobs:" in block)
    (job,) = yaml.safe_load(shown)["jobs"].values()
    given = [step.get("with", {}) for step in job["steps"] if ".ci/action@" in step["uses"]]
    required = {name for name, entry in FOUND["inputs"].items() if entry["required"]}
    assert len(given) == 1 and required <= set(given[0]) <= set(FOUND["inputs"])


@pytest.mark.compiles
def test_what_it_runs_writes_the_summary(tmp_path: Path) -> None:
    plugin = ROOT / "tests" / "plugins" / "wrong_claim.py"
    (tmp_path / "test_own.py").write_text("def test_own(): pass\n")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTEST_ADDOPTS": f"-p harness.pytest_plugin -p no:cacheprovider -k '{CHOSEN}'",
        "PLUGIN": str(plugin),
        "EXAMPLES": "16",
        "TESTS": "test_own.py",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
    }
    done = subprocess.run(
        ["bash", ACTION / "battery.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "test_own.py::test_own PASSED" in done.stdout
    summary = (tmp_path / "summary.md").read_text()
    row = next(line for line in summary.splitlines() if line.startswith("| wrong-claim"))
    assert [cell.strip() for cell in row.split("|")[1:-1]] == ["wrong-claim", *"-----", "pass", "**fail**"]
    assert "**wrong-claim: claim**" in summary and re.search(r"claims [\d,]+ bytes read", summary)
    assert re.search(r"^\|\s+1 \| wrong-claim \| pass", summary, re.MULTILINE)  # of `compare`, on the default problem
    assert (tmp_path / "output").read_text().startswith("summary=")
