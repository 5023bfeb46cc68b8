"""Records of counters from several GPUs as one, for what is the same on all of them: sectors and wavefronts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def merged(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge records of scripts/record_traffic.py: the latest entry for each problem and variant.

    Problems are known by their fields. `date` is the latest; of launches there are the counters that all records have.
    """
    in_order = sorted(records, key=lambda record: record["date"])
    problems: list[dict[str, Any]] = []
    for record in in_order:
        problems += [fields for fields in record["problems"] if fields not in problems]
    metrics = [name for name in in_order[0]["metrics"] if all(name in record["metrics"] for record in in_order)]
    plans: dict[tuple[int, str], dict[str, Any]] = {}
    launches: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for record in in_order:
        places = [problems.index(fields) for fields in record["problems"]]
        names = list(record["metrics"])
        columns = [names.index(name) for name in metrics]
        for row in record["plans"]:
            case = places[row["problem"]], row["variant"]
            plans[case], launches[case] = {**row, "problem": case[0]}, []
        for row in record["launches"]:
            case = places[row["problem"]], row["variant"]
            launches[case].append({**row, "problem": case[0], "values": [row["values"][column] for column in columns]})
    return {
        "date": in_order[-1]["date"],
        "metrics": metrics,
        "problems": problems,
        "plans": list(plans.values()),
        "launches": [row for rows in launches.values() for row in rows],
    }
