#!/usr/bin/env python3
"""Hold the times that `why` predicts against a record of the hardware's. Run from the repository's root:

    python scripts/check_predicted_times.py --flops 1e9

Prints a line for each plan of tests/hardware/traffic_h200.json that is still the same: the time of all its launches as
Nsight Compute measured it (caches empty before each), the predicted one, and their ratio. Then of how many pairs of
variants of one problem the prediction knows which one is faster, where they are at least 1.25 times apart.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from harness.emulator.executor import EmulatorExecutor  # noqa: E402
from harness.emulator.instruments import Instruments  # noqa: E402
from harness.execution.judging.question import Question  # noqa: E402
from harness.execution.run_settings import CacheModel, RunSettings  # noqa: E402
from harness.model.discovery import discover  # noqa: E402
from harness.studies.why.predicted_time import predict  # noqa: E402
from harness.studies.why.profile import profile_of  # noqa: E402
from harness.support.gpu_data_sheets import GPUS  # noqa: E402
from harness.support.pipe_rates import LAUNCH_SECONDS  # noqa: E402
from scripts.recording.plan_hash import plan_hash, recorded_hashes  # noqa: E402
from scripts.recording.recorded_problem import recorded_problem  # noqa: E402

RECORD = ROOT / "tests" / "hardware" / "traffic_h200.json"
H200 = GPUS["h200"]
FAR_APART = 1.25


@dataclass(frozen=True)
class Prediction:
    """One plan."""

    problem: int
    variant: str
    measured_us: float
    predicted_us: float
    """Without what lies between launches, which Nsight Compute does not measure."""

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted_us / self.measured_us


def predictions(record: dict[str, Any], most_flops: float) -> list[Prediction]:
    """All plans of the record that are not stale and small enough."""
    registry = discover().registry
    names = {variant.name for variant in registry}
    instruments = Instruments(bank_conflicts=True, instructions=True)
    executor = EmulatorExecutor(RunSettings(caches=CacheModel(H200, flushed=True)), instruments=instruments)
    found = []
    for index, name in sorted({(row["problem"], row["variant"]) for row in record["launches"]}):
        problem = recorded_problem(record["problems"][index])
        if name not in names or problem.flops > most_flops:
            continue
        variant = registry.get(name)
        if plan_hash(variant.plan(problem), problem) not in recorded_hashes(record, index, name):
            continue
        rows = [row for row in record["launches"] if (row["problem"], row["variant"]) == (index, name)]
        measured = sum(dict(zip(record["metrics"], row["values"]))["time_ns"] for row in rows) / 1e3
        time = predict(profile_of(variant, Question.draw(problem), executor, H200.multiprocessor), H200)
        found.append(Prediction(index, name, measured, 1e6 * (time.seconds - LAUNCH_SECONDS * time.launches)))
        print(f"{index:3} {name:28}{measured:>10.1f} us{found[-1].predicted_us:>10.1f} us {found[-1].ratio:>6.2f}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flops", type=float, default=1e9, help="of the largest problem (default: %(default)g)")
    arguments = parser.parse_args()
    found = predictions(json.loads(RECORD.read_text()), arguments.flops)
    pairs = [
        (one, other)
        for one, other in itertools.combinations(found, 2)
        if one.problem == other.problem
        and max(one.measured_us, other.measured_us) >= FAR_APART * min(one.measured_us, other.measured_us)
    ]
    right = sum((a.measured_us < b.measured_us) == (a.predicted_us < b.predicted_us) for a, b in pairs)
    ratios = sorted(each.ratio for each in found)
    print(
        f"{len(found)} plans: predicted / measured {statistics.median(ratios):.2f} in the median, half of them between"
    )
    low, _, high = statistics.quantiles(ratios, n=4)
    print(f"{low:.2f} and {high:.2f}, all between {ratios[0]:.2f} and {ratios[-1]:.2f}")
    print(f"the faster one known in {right} of {len(pairs)} pairs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
