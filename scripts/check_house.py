"""The limits of the house: how much stands at the top of harness/ and in each folder of it, and how long files are."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_FILES, MOST_FOLDERS, MOST_MODULES, MOST_LINES = 4, 12, 20, 450
LONG_BY_NATURE = (".md",)


def complaints(paths: list[str]) -> Iterator[str]:
    """What is too much, a line each."""
    top = {path.split("/")[1] for path in paths if path.startswith("harness/")}
    files = {name for name in top if f"harness/{name}" in paths and name.endswith(".py")}
    if len(files) > MOST_FILES:
        yield f"harness/ has {len(files)} files ({', '.join(sorted(files))}); at most {MOST_FILES}"
    folders = {name for name in top if f"harness/{name}" not in paths}
    if len(folders) > MOST_FOLDERS:
        yield f"harness/ has {len(folders)} folders; at most {MOST_FOLDERS}"
    packages = {str(Path(path).parent) for path in paths if path.startswith("harness/") and path.endswith(".py")}
    for package in sorted(packages):
        if f"{package}/__init__.py" not in paths:
            yield f"{package}/ has no __init__.py: the import contracts do not see it"
        modules = sum(path.endswith(".py") and str(Path(path).parent) == package for path in paths)
        if modules > MOST_MODULES:
            yield f"{package}/ has {modules} modules; at most {MOST_MODULES}: which of them want a room of their own?"
    for path in paths:
        is_test = path.startswith("tests/") and path.endswith(".py")
        if is_test or (path.startswith(("harness/", "variants/", "scripts/")) and not path.endswith(LONG_BY_NATURE)):
            lines = (ROOT / path).read_bytes().count(b"\n")
            if lines > MOST_LINES:
                yield f"{path} has {lines} lines; at most {MOST_LINES}: which concept in it wants a room of its own?"


def main() -> int:
    """Print what is too much; 1 where there is anything."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    found = list(complaints([path for path in listed.stdout.splitlines() if (ROOT / path).exists()]))
    print("\n".join(found) or "The house is within its limits.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
