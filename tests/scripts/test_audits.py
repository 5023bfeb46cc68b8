"""What scripts/audits/README.md shows is what the audits print."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from lanes import thorough_unless

ROOT = Path(__file__).resolve().parents[2]
AUDITS = ROOT / "scripts" / "audits"
SHOWN = dict(re.findall(r"<!-- output of: (\S+) -->\n```text\n(.*?)```", (AUDITS / "README.md").read_text(), re.DOTALL))


def test_every_audit_is_shown():
    assert set(SHOWN) == {f"scripts/audits/{path.name}" for path in AUDITS.glob("*.py")}


@pytest.mark.parametrize("script", thorough_unless(lambda script: "published_traffic" not in str(script), SHOWN))
def test_the_output_shown_is_the_real_one(script: str, tmp_path: Path):
    ran = subprocess.run([sys.executable, ROOT / script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == SHOWN[script]


@pytest.mark.parametrize("figure", ["4.65", "4.10", "25.2", "50.4 %", "56.2 %", "18.0"])
def test_the_figures_of_the_verdicts_stand_in_the_outputs(figure: str):
    assert any(figure in text for text in SHOWN.values())
