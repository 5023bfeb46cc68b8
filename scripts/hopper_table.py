#!/usr/bin/env python3
"""Measure this project's kernels on a Hopper GPU beside those of libraries, and write docs/hopper.md.

Run from the repository's root, with the packages of docs/hopper.md installed:

    python scripts/hopper_table.py                      # what the record lacks, about five minutes on an H200
    python scripts/hopper_table.py --only decode pages  # some groups
    python scripts/hopper_table.py --pages              # only write the page, without a GPU

Each problem is written to the record as soon as it is measured, so an interrupted run goes on where it ended.
`--afresh` measures all again. A record is of one machine and one set of versions: with others, use `--afresh`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.hopper.page import PAGE, RECORD, page_of  # noqa: E402
from scripts.hopper.problems import GROUPS  # noqa: E402

SPARE_CORES = 2


def main() -> None:
    """Parse, measure what is missing, write record and page."""
    parser = argparse.ArgumentParser(description="Measure the table of docs/hopper.md.")
    parser.add_argument("--only", nargs="+", metavar="GROUP", choices=[group.name for group in GROUPS], help="groups")
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no problem after so long (%(default)s)")
    parser.add_argument("--record", type=Path, default=RECORD, help="where the record is (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) - SPARE_CORES), help="processes")
    parser.add_argument("--afresh", action="store_true", help="forget what the record has of these groups")
    parser.add_argument("--pages", action="store_true", help="only write the page of the record")
    arguments = parser.parse_args()
    begun = time.monotonic()
    if not arguments.pages:
        _measure(arguments, begun)
    if arguments.record.exists():
        PAGE.write_text(page_of(json.loads(arguments.record.read_text())))
        _tell(begun, f"wrote {PAGE.relative_to(ROOT)}")


def _measure(arguments: argparse.Namespace, begun: float) -> None:
    from scripts.hopper.measurement import Item, Timing, prepared_files

    items = [Item(group, p) for group in GROUPS for p in group.problems]
    chosen = [item for item in items if arguments.only is None or item.group.name in arguments.only]
    record = json.loads(arguments.record.read_text()) if arguments.record.exists() else {"about": {}, "entries": []}
    if arguments.afresh:
        forgotten = [item.key for item in chosen]
        record["entries"] = [entry for entry in record["entries"] if _key(entry) not in forgotten]
    known = [_key(entry) for entry in record["entries"] if _has_figures(entry)]
    missing = [item for item in chosen if item.key not in known]
    _tell(begun, f"{len(missing)} of {len(chosen)} problems to measure, {arguments.jobs} processes")
    if not missing:
        return
    timing = Timing()
    timing.begin()
    with tempfile.TemporaryDirectory() as folder:
        files = prepared_files(missing, Path(folder), arguments.jobs, lambda text: _tell(begun, text))
        about = _about(timing)
        _require_same(record, about)
        record["about"] = record["about"] or about
        order = [item.key for item in items]
        for number, item in enumerate(missing):
            if time.monotonic() - begun > arguments.seconds:
                _tell(begun, f"{len(missing) - number} problems are left; call the script again")
                break
            file = files[number]
            entry = timing.measure(item, file) if isinstance(file, Path) else item.key | {"failed": file}
            entry["date"] = about["date"]
            others = [each for each in record["entries"] if _key(each) in order and _key(each) != item.key]
            record["entries"] = sorted([*others, entry], key=lambda each: order.index(_key(each)))
            _write(arguments.record, record)
            _tell(begun, f"{number + 1}/{len(missing)} {item.group.name}: {item.problem.headline}: {_in_words(entry)}")
        timing.end()


def _key(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: entry[name] for name in ("group", "problem")}


def _has_figures(entry: dict[str, Any]) -> bool:
    return any("ms" in row for row in entry.get("rows", {}).values())


def _about(timing: Any) -> dict[str, Any]:
    """The machine, the date and the versions."""
    from scripts.recording.environment import environment

    return environment() | timing.about()


def _require_same(record: dict[str, Any], about: dict[str, Any]) -> None:
    """End where the record is of another machine or of other versions. Rates differ a little each time."""
    before = record["about"] if record["entries"] else {}
    others = [name for name in ("gpu", "driver", "libraries") if before and before.get(name) != about[name]]
    if others:
        sys.exit(f"the record has another {' and '.join(others)}; add --afresh, without --only")


def _write(file: Path, record: dict[str, Any]) -> None:
    """An entry a line, so that differences can be read."""
    head = json.dumps({"about": record["about"]}, indent=1)[:-2]
    rows = ",\n  ".join(json.dumps(entry) for entry in record["entries"])
    partial = file.with_suffix(".partial")
    partial.write_text(f'{head},\n "entries": [\n  {rows}\n ]\n}}\n')
    partial.replace(file)


def _in_words(entry: dict[str, Any]) -> str:
    if "failed" in entry:
        return str(entry["failed"])
    rows = entry["rows"].items()
    return ", ".join(f"{name} {row['ms'][1]:.3f}" if "ms" in row else f"{name} {row['verdict']}" for name, row in rows)


def _tell(begun: float, text: str) -> None:
    print(f"{time.monotonic() - begun:6.1f} s  {text}", flush=True)


if __name__ == "__main__":
    main()
