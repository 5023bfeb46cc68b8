"""Programs on the pages that need CuTe DSL print what stands below them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.shown_outputs import ROOT, pages, shown_files

REGISTERS = re.compile(r", \d+ registers$", re.MULTILINE)
OUTPUT = r"```python\n# {}\n.*?^```\n\n```text\n(.*?)^```"


def shown_output(program: str) -> str:
    found = [re.search(OUTPUT.format(program), page.read_text(), re.DOTALL | re.MULTILINE) for page in pages()]
    (output,) = [each[1] for each in found if each]
    return str(output)


@pytest.mark.needs_cute
@pytest.mark.parametrize("program", ["device_cute.py", "flash_attention_4.py"])
def test_the_output_is_the_real_one(program: str, tmp_path: Path) -> None:
    (tmp_path / program).write_text(shown_files()[program])
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, program]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = shown_output(program)
    if not REGISTERS.search(done.stdout):  # ptxas of CUDA 12 does not read CuTe's PTX
        shown = REGISTERS.sub("", shown)
    assert [line.rstrip() for line in done.stdout.splitlines()] == shown.splitlines()
