"""Runs a variant's plan under NVIDIA's `compute-sanitizer` and converts its reports to findings.

The tool runs `profiled_run`, which runs the plan once, natively. Each report, a headline and lines with the places,
becomes one finding in the tool's own words.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from harness.model.discovery import REPOSITORY_ROOT
from harness.model.finding import Finding, Place
from harness.model.plan import Plan
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.support.errors import SandboxError

TOOLS = {
    "memcheck": ("--leak-check", "no", "--report-api-errors", "no"),
    "racecheck": ("--racecheck-report", "analysis"),
    "initcheck": (),
    "synccheck": (),
}
"""The tools of compute-sanitizer and their options."""
_PROGRAM = "compute-sanitizer"
_SECONDS = 600
_MARK = "========="
_PLACE = re.compile(r" in (\S.*?):(\d+)(?=$|[\s:)])")
_THREAD = re.compile(r"by thread \((\d+),(\d+),(\d+)\) in block \((\d+),(\d+),(\d+)\)")
_KERNEL = re.compile(r"\bat (?:\w+::)*(\w+)\+0x")
_NUMBA_MANGLING = re.compile(r"\[abi:[^]]*\]\([^+]*\)(?=\+0x)")
"""Suffix of a Numba kernel's name: a checksum and the types of its arguments."""
_HAZARDS = re.compile(r"\[(\d+) hazards?\]")
_NOT_REPORTS = (
    "COMPUTE-SANITIZER",
    "ERROR SUMMARY",
    "RACECHECK SUMMARY",
    "LEAK SUMMARY",
    "Target application",
    "This ",
)


class ComputeSanitizer:
    """A `Sanitizer` that runs compute-sanitizer. The inputs are drawn again, in a separate process."""

    name = _PROGRAM

    def __init__(self, regime: str = "normal", seed: int = 0, plugins: Sequence[Path] = ()) -> None:
        self._regime, self._seed = regime, seed
        self._plugins = [str(path.resolve()) for path in plugins]

    def check(
        self, variant: Variant, problem: BaseProblem, plan: Plan, inputs: Mapping[str, np.ndarray]
    ) -> tuple[Finding, ...]:
        """Run all tools, one after the other. Raises `SandboxError` if the program is missing or fails."""
        if shutil.which(_PROGRAM) is None:
            raise SandboxError(
                f"{_PROGRAM} is not on the PATH; it comes with the CUDA toolkit. --device emulator needs none"
            )
        run = {
            "variant": variant.name,
            "operation": problem.operation,
            "problem": problem.to_fields(),
            "regime": self._regime,
            "seed": self._seed,
        }
        # Filling memory would hide from initcheck that no kernel wrote it.
        request = {"plugins": self._plugins, "runs": [run], "poison": False}
        return tuple(finding for tool in TOOLS for finding in _run_tool(tool, request))


def _run_tool(tool: str, request: dict[str, object]) -> list[Finding]:
    with tempfile.TemporaryDirectory() as folder:
        request_file, reply, log = (Path(folder, name) for name in ("request.json", "reply.json", "log.txt"))
        request_file.write_text(json.dumps(request))
        program = [sys.executable, "-m", "harness.gpu.profiled_run", str(request_file), str(reply)]
        command = [_PROGRAM, "--tool", tool, *TOOLS[tool], "--print-limit", "0", "--log-file", str(log), *program]
        try:
            subprocess.run(command, cwd=REPOSITORY_ROOT, capture_output=True, timeout=_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SandboxError(f"{_PROGRAM} --tool {tool} did not end well: {error}") from error
        text = log.read_text(errors="replace") if log.exists() else ""
        found = list(parse_log(tool, text))
        failure = json.loads(reply.read_text())["error"] if reply.exists() else "the program ended too early"
        if failure and not found:
            raise SandboxError(f"{_PROGRAM} --tool {tool}: {' '.join(str(failure).split())}")
        return found


def parse_log(tool: str, text: str) -> Iterator[Finding]:
    """The findings in a log of `compute-sanitizer --tool TOOL`: the first per headline, kernel and lines."""
    merged: dict[tuple[object, ...], list[Finding]] = {}
    for report in _reports(text):
        finding = _finding(tool, report)
        places = [None if p is None else (p.file, p.line) for p in (finding.place, finding.other)]
        merged.setdefault((report[0].split("[")[0], finding.kernel, *places), []).append(finding)
    for first, *others in merged.values():
        count = first.count + sum(other.count for other in others)
        yield Finding(**{**vars(first), "count": count})


def _reports(text: str) -> Iterator[list[str]]:
    """Yield each report as a headline and its lines, without the host backtrace."""
    report: list[str] = []
    for line in [*text.splitlines(), _MARK]:
        if not line.startswith(_MARK):
            continue
        content = line[len(_MARK) :].rstrip()
        if not content.strip():
            if report:
                yield report
            report = []
        elif report:
            if "Host Frame" not in content and "Saved host backtrace" not in content:
                report.append(content.strip())
        elif not content.strip().startswith(_NOT_REPORTS):
            report = [content.strip()]


def _finding(tool: str, report: list[str]) -> Finding:
    text = _NUMBA_MANGLING.sub("", " ".join(report))
    kernel, hazards, thread = _KERNEL.search(text), _HAZARDS.search(text), _THREAD.search(text)
    numbers = [int(n) for n in thread.groups()] if thread else [0] * 6
    places = [
        Place(file, int(line), (numbers[3], numbers[4], numbers[5]), (numbers[0], numbers[1], numbers[2]))
        for file, line in _PLACE.findall(text)
    ]
    return Finding(
        kind=tool,
        message=text,
        kernel=kernel.group(1) if kernel else None,
        place=places[0] if places else None,
        other=places[1] if len(places) > 1 else None,
        count=int(hazards.group(1)) if hazards else 1,
    )
