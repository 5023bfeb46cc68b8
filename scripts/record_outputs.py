#!/usr/bin/env python3
"""Record what a GPU answers to every variant on small problems, for the tests to hold the emulator to.

Needs a GPU. Run from the repository's root:

    python scripts/record_outputs.py tests/hardware/outputs_h200.zip

Nearly all of the time goes into compiling. What changed alone is run with `--keep`, on the machine that the record is
from, and what there is no time for may follow in another call:

    python scripts/record_outputs.py tests/hardware/outputs_h200.zip --keep tests/hardware/outputs_h200.zip --seconds 99
"""

from __future__ import annotations

import argparse
import sys
import time
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from harness.execution.planning.variant_calls import refusal_of  # noqa: E402
from harness.gpu.executor import GpuExecutor  # noqa: E402
from harness.model.discovery import discover  # noqa: E402 - the repository need not be installed
from harness.support.errors import SandboxError  # noqa: E402
from harness.support.file_replacement import replace_files, require_writable  # noqa: E402
from scripts.recording.environment import environment, require_same_machine  # noqa: E402
from scripts.recording.output_record import CASES, Recorded, inputs_of, load, problem_of, save  # noqa: E402
from scripts.recording.plan_hash import plan_hash  # noqa: E402


def kept_answers(path: Path, made_on: dict[str, str]) -> dict[tuple[int, str, str], Recorded]:
    """What an earlier record has, by case, variant and plan. Raises `UsageError` where it is from another machine."""
    recorded_on, cases, answers = load(path)
    require_same_machine(recorded_on, made_on)
    wanted = [(fields, regime) for fields, regime in cases]
    places = {number: CASES.index(case) for number, case in enumerate(wanted) if case in CASES}
    return {
        (places[one.case], one.variant, one.plan): Recorded(places[one.case], one.variant, one.plan, one.outputs)
        for one in answers
        if one.case in places
    }


def record(kept: dict[tuple[int, str, str], Recorded], variants: str, seconds: float) -> list[Recorded]:
    """Every variant's answer to every case: a kept one of the same plan, else, of `variants`, natively, while there are
    `seconds`."""
    executor, answers, end = GpuExecutor(timed=False), [], time.monotonic() + seconds
    for case in range(len(CASES)):
        problem, inputs = problem_of(case), inputs_of(case)
        for variant in discover().registry:
            if refusal_of(variant, problem) is not None:
                continue
            plan = variant.plan(problem)
            hashed = plan_hash(plan, problem)
            if (case, variant.name, hashed) in kept:
                answers.append(kept[case, variant.name, hashed])
            elif fnmatch(variant.name, variants) and time.monotonic() < end:
                outputs = executor.run(problem, plan, inputs).outputs
                data = {name: array.tobytes() for name, array in outputs.items()}
                answers.append(Recorded(case, variant.name, hashed, data))
    return answers


def main() -> None:
    """Parse, record, write whole."""
    parser = argparse.ArgumentParser(description="Record a GPU's answers to every variant.")
    parser.add_argument("output", type=Path, help="where the record goes (zip)")
    parser.add_argument(
        "--keep", type=Path, metavar="FILE", help="an earlier record, whose answers of the same plans stay"
    )
    parser.add_argument("--variants", default="*", metavar="GLOB", help="run these alone")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no more runs after so long")
    arguments = parser.parse_args()
    output: Path = arguments.output
    try:
        require_writable(output)
        made_on = environment()
        kept = kept_answers(arguments.keep, made_on) if arguments.keep else {}
        answers = record(kept, arguments.variants, arguments.seconds)
        replace_files({output: save(made_on, answers)})
    except SandboxError as error:
        sys.exit(str(error))
    print(f"{len(answers)} answers recorded in {output}, {output.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
