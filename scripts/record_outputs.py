#!/usr/bin/env python3
"""Record what a GPU answers to every variant on small problems, for the tests to hold the emulator to.

Needs a GPU. Run from the repository's root:

    python scripts/record_outputs.py tests/hardware/outputs_h200.zip
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from harness.gpu.executor import GpuExecutor  # noqa: E402
from harness.model.discovery import discover  # noqa: E402 - the repository need not be installed
from harness.support.errors import SandboxError  # noqa: E402
from harness.support.file_replacement import replace_files, require_writable  # noqa: E402
from scripts.recording.environment import environment  # noqa: E402
from scripts.recording.output_record import CASES, Recorded, inputs_of, problem_of, save  # noqa: E402
from scripts.recording.plan_hash import plan_hash  # noqa: E402


def record() -> list[Recorded]:
    """Every variant on every case, natively."""
    executor, answers = GpuExecutor(timed=False), []
    for case in range(len(CASES)):
        problem, inputs = problem_of(case), inputs_of(case)
        for variant in discover().registry:
            if variant.supports(problem) is None:
                plan = variant.plan(problem)
                outputs = executor.run(problem, plan, inputs).outputs
                data = {name: array.tobytes() for name, array in outputs.items()}
                answers.append(Recorded(case, variant.name, plan_hash(plan, problem), data))
    return answers


def main() -> None:
    """Parse, record, write whole."""
    parser = argparse.ArgumentParser(description="Record a GPU's answers to every variant.")
    parser.add_argument("output", type=Path, help="where the record goes (zip)")
    output: Path = parser.parse_args().output
    try:
        require_writable(output)
        answers = record()
        replace_files({output: save(environment(), answers)})
    except SandboxError as error:
        sys.exit(str(error))
    print(f"{len(answers)} answers recorded in {output}, {output.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
