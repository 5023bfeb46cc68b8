"""The record of the learning path's times and bytes on a GPU, which scripts/record_path.py makes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.execution.planning.variant_calls import make_plan
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from scripts.recording.plan_hash import plan_hash
from scripts.recording.recorded_problem import OPERATION

RECORD = Path(__file__).resolve().parents[2] / "tests" / "hardware" / "path_h200.json"


def recorded_fields(problem: BaseProblem) -> dict[str, Any]:
    """A problem's fields as they stand in the record."""
    return {OPERATION: problem.operation, **problem.to_short_fields()}


class PathRecord:
    """What a GPU measured of the path's kernels. Rows of kernels or plans that have changed since count as unknown."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.gpu, self.driver, self.date = record["gpu"], record["driver"], record["date"]
        self.torch: str = record.get("torch", "")
        self._times, self._counters = (
            {_key(row["variant"], row["problem"]): row for row in record[table]} for table in ("times", "counters")
        )

    @property
    def where_and_when(self) -> str:
        """The GPU, its driver and the date."""
        return f"{self.gpu}, driver {self.driver}, {self.date}"

    def us(self, variant: Variant | str, problem: BaseProblem) -> float | None:
        """Median time of cold runs in microseconds; None if it was not measured. Libraries' kernels have names only."""
        row = self._row(self._times, variant, problem)
        return None if row is None else float(row["us"])

    def bytes_at(self, level: str, variant: Variant, problem: BaseProblem) -> int | None:
        """Bytes read and written at `sectors`, `L2` or `DRAM`; None if they were not counted."""
        row = self._row(self._counters, variant, problem)
        return None if row is None else row["bytes"][level]

    def _row(self, rows: Mapping[str, Any], variant: Variant | str, problem: BaseProblem) -> Any:
        name = variant if isinstance(variant, str) else variant.name
        row = rows.get(_key(name, recorded_fields(problem)))
        is_of_today = row is not None and (isinstance(variant, str) or row["hash"] == _hash(variant, problem))
        return row if is_of_today else None


def path_record(path: Path = RECORD) -> PathRecord | None:
    """The record in a file; None if there is none yet."""
    return PathRecord(json.loads(path.read_text())) if path.exists() else None


def _key(variant: str, fields: Mapping[str, Any]) -> str:
    return json.dumps([variant, dict(fields)], sort_keys=True)


def _hash(variant: Variant, problem: BaseProblem) -> str:
    return plan_hash(make_plan(variant, problem), problem)
