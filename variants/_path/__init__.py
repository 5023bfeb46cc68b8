"""The learning path, from the softmax of the definition to FlashAttention-3: a folder per step.

README.md describes their files.
Its variants are not registered: `python -m harness learn` discovers the steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import Problem

FOLDER = Path(__file__).parent
HEAD_DIM = 32
"""A lane per column of Q, K, V and O."""
F32 = 4
"""Bytes of a float."""


def cuda_kernels(*names: str, options: tuple[str, ...] = ()) -> Callable[[str], tuple[Any, ...]]:
    """Return a function that makes the CuPy kernels `names` of a CUDA text.

    `#include "FILE"` is replaced by the text of that file of this folder.
    """

    @functools.cache
    def make(text: str) -> tuple[Any, ...]:
        import cupy

        source = _with_headers(text)
        return tuple(cupy.RawKernel(source, name, options=options) for name in names)

    return make


def _with_headers(text: str) -> str:
    """The text with the headers of this folder in place of the lines that include them; each keeps its line numbers."""
    lines = ['#line 1 "kernel.cu"']
    for number, line in enumerate(text.splitlines(), start=1):
        name = line.removeprefix('#include "').removesuffix('"')
        if name != line and (FOLDER / name).is_file():
            lines += [
                f'#line 1 "{name}"',
                (FOLDER / name).read_text(encoding="utf-8"),
                f'#line {number + 1} "kernel.cu"',
            ]
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def one_head(problem: Problem) -> str | None:
    """Return None for problems that the steps on CUDA cores support, or else what they support."""
    shape = problem.batch == problem.heads == 1 and problem.head_dim == HEAD_DIM
    wanted = f"only one head in float32 with head_dim {HEAD_DIM} is supported"
    return None if shape and problem.dtype == "float32" else wanted


def small(q_len: int, kv_len: int | None = None) -> Problem:
    """Return a problem of one head that these steps support."""
    return Problem(heads=1, head_dim=HEAD_DIM, q_len=q_len, kv_len=q_len if kv_len is None else kv_len)
