"""What scripts/check_house.py says of kernels that are hard to read, and of those that are not."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

HOUSE = runpy.run_path(str(Path(__file__).resolve().parents[2] / "scripts" / "check_house.py"))
CUDA = "// A comment.\n\n#pragma unroll\nfor (;;) {}  // forever\n/* Two\n   lines. */\n"
PYTHON = '"""A module."""\n\n# A comment.\ndef f(\n    x,\n):\n    """A function."""\n    return x  # the same\n'


def test_lines_without_code_do_not_count():
    assert HOUSE["cuda_lines"](CUDA) == 2
    assert HOUSE["python_lines"](PYTHON) == 4


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        ("variants/attention/fa2/kernel.cu", CUDA, []),
        ("variants/attention/fa2/kernel.cu", "#include <a>\n # ifdef B\n#endif\n", ["#ifdef", "#endif"]),
        ("variants/_path/warp.cuh", "#ifndef INFINITY\n#endif\n", []),
        ("variants/attention/fa2/kernel.cu", "f();\n" * 111, ["111 lines of code; at most 110"]),
        ("variants/attention/fa2/numba_kernel.py", "f()\n" * 111, ["111 lines of code; at most 110"]),
        ("variants/attention/fa2/__init__.py", "f()\n" * 111, []),
        ("variants/_tiles/tiles.cuh", "f();\n" * 251, ["251 lines of code; at most 250"]),
        ("variants/attention/fa2_mma/products.cuh", "// f\n" * 301, ["301 lines; at most 300"]),
    ],
)
def test_kernels_are_short_and_have_no_directives(path: str, text: str, said: list[str]):
    complaints = list(HOUSE["kernel_complaints"](path, text))
    assert len(complaints) == len(said)
    assert all(part in complaint for part, complaint in zip(said, complaints))
