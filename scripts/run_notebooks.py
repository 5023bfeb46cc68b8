#!/usr/bin/env python3
"""Run the notebooks of docs/notebooks from top to bottom, each in an empty folder, and keep what they show.

    .venv/bin/python scripts/run_notebooks.py               # all of them
    .venv/bin/python scripts/run_notebooks.py docs/notebooks/write_your_own_variant.ipynb

A test runs them, too, and holds the text that they show against what was kept.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
NOTEBOOKS = ROOT / "docs" / "notebooks"
CELL_SECONDS = 120
VARIES = "varies"
"""Tag of a cell that shows what another version of Hypothesis may find otherwise."""


def executed(path: Path) -> Any:
    """The notebook as it is after all of its cells ran, without a GPU. Raises nbclient's `CellExecutionError`."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook, timeout=CELL_SECONDS, kernel_name="python3", resources={"metadata": {"path": folder}}
        )
        client.execute(env=environment)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran
        if "outputs" in cell:
            # Progress, which is wiped out in the end.
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
    return notebook


def shown(notebook: Any) -> list[str]:
    """The text that each cell shows, pictures and HTML left out: what has to be the same every time."""
    found = []
    for cell in notebook.cells:
        if VARIES in cell.metadata.get("tags", ()):
            continue
        texts = [
            output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.get("outputs", ())
        ]
        found.append("".join("<picture>" if text.startswith("<picture") else text for text in texts))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run and keep."""
    parser = argparse.ArgumentParser(description="Run the notebooks and keep what they show.")
    parser.add_argument("notebooks", nargs="*", type=Path, metavar="FILE.ipynb", help="which ones (default: all)")
    import nbformat

    for path in parser.parse_args(argv).notebooks or sorted(NOTEBOOKS.glob("*.ipynb")):
        began = time.monotonic()
        nbformat.write(executed(path), path)
        print(f"{path.name}: {time.monotonic() - began:.1f} s, {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
