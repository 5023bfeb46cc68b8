"""The limits of the house: how much stands at the top of harness/ and in each folder of it, and how long files are."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_FILES, MOST_FOLDERS, MOST_MODULES, MOST_LINES = 4, 12, 20, 450
LONG_BY_NATURE = (".md",)

KERNEL_SUFFIXES = (".cu", ".cuh")
PATH = "variants/_path/"
"""Lessons, whose headers define what NVRTC lacks."""
TEXTBOOK = ("fa1", "fa2", "two_pass", "three_pass", "three_pass_recompute", "row_wise")
"""Algorithms of attention whose kernels read like the papers, as those of softmax do."""
MOST_CODE = {
    **{f"variants/attention/{algorithm}/": 110 for algorithm in TEXTBOOK},
    "variants/softmax/": 110,
    **{f"variants/{folder}/": 250 for folder in ("_tiles", "_warps", "_rows")},
}
"""Lines of code, without blank lines, comments and docstrings, of each kernel and each header in a folder."""
TENSOR_CORES = (
    "variants/attention/fa2_mma/",
    "variants/attention/fa3/",
    "variants/attention_backward/mma/",
    "variants/attention_backward/mma_ordered/",
    "variants/_mma_backward/",
)
MOST_KERNEL_LINES = 300
"""Lines of each file of an algorithm on tensor cores."""
DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(?!include\b|pragma\b)(\w+)", re.MULTILINE)
NO_CODE = (
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
)  # fmt: skip


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
        if path.startswith("variants/"):
            yield from kernel_complaints(path, (ROOT / path).read_text())


def kernel_complaints(path: str, text: str) -> Iterator[str]:
    """What keeps a kernel, or what it is compiled with, from being read like a paper."""
    is_cuda, name = path.endswith(KERNEL_SUFFIXES), Path(path).name
    if is_cuda and not path.startswith(PATH):
        for directive in DIRECTIVE.findall(text):
            yield f"{path} has a directive #{directive}; features of kernels are types, and sizes are options"
    is_numba = name.startswith("numba_") and name.endswith(".py")
    most = max((most for folder, most in MOST_CODE.items() if path.startswith(folder)), default=None)
    if most is not None and (is_cuda or is_numba):
        lines = cuda_lines(text) if is_cuda else python_lines(text)
        if lines > most:
            yield f"{path} has {lines} lines of code; at most {most}"
    lines = text.count("\n")
    if path.startswith(TENSOR_CORES) and path.endswith((*KERNEL_SUFFIXES, ".py")) and lines > MOST_KERNEL_LINES:
        yield f"{path} has {lines} lines; at most {MOST_KERNEL_LINES}"


def cuda_lines(text: str) -> int:
    """Return how many lines of CUDA C++ have code."""
    without = re.sub(r"/\*.*?\*/", lambda comment: "\n" * comment[0].count("\n"), text, flags=re.DOTALL)
    return sum(bool(line.partition("//")[0].strip()) for line in without.splitlines())


def python_lines(text: str) -> int:
    """Return how many lines of Python have code, without docstrings."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    code = {n for each in tokens if each.type not in NO_CODE for n in range(each.start[0], each.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            code -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(code)


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
