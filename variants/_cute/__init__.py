"""FlashAttention-4 itself: the kernels of the package `flash-attn-4`, called through its own interface.

Its interface is called as on a GPU, but with PyTorch's fake tensors, which have shapes and no memory. It chooses tiles,
compiles what it needs, and calls the compiled functions; `Recording` notes these calls, and each is turned into the
launches that its host code makes (`CuteFunction.launches`). Nothing of the package is part of this repository.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import tempfile
import warnings
from dataclasses import dataclass
from typing import Any

from harness import Problem, Registry, UnsupportedProblem

PACKAGES = ("flash-attn-4", "nvidia-cutlass-dsl", "torch")
INSTALL = "pip install 'flash-attn-4>=4.0.0b36' 'nvidia-cutlass-dsl[cu13]' torch triton"
LARGEST_HEAD_DIM = 256
BLACKWELL_HEAD_DIM = 128
"""The largest of the kernels for Blackwell, but for 256, of which each kernel has another form."""
ELEMENTS_PER_PIECE = 8
"""Of 16 bits each, in the 16 bytes in whose steps a tensor map takes rows."""


@dataclass(frozen=True)
class Target:
    """A generation of GPUs that FlashAttention-4 has kernels for."""

    name: str
    """What CuTe compiles for, such as `sm_90a`."""
    number: int
    """What FlashAttention-4's interface calls it, such as 90."""
    multiprocessors: int
    """Of the GPU that grids are chosen for."""


HOPPER, BLACKWELL = Target("sm_90a", 90, 132), Target("sm_100a", 100, 148)
"""H100 and H200; B200."""


def target_of(arch: str) -> Target:
    """The target whose kernels run on an architecture: Blackwell's on `sm_100`, Hopper's on others."""
    return BLACKWELL if arch.rstrip("af") == "sm_100" else HOPPER


@functools.lru_cache(maxsize=1)
def versions() -> tuple[str, ...] | None:
    """Versions of the packages; None if one of them is missing."""
    try:
        return tuple(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    except importlib.metadata.PackageNotFoundError:
        return None


def leave_out_if_missing(registry: Registry, name: str) -> bool:
    """Tell the registry why there is no variant of this name, if a package is missing. Returns whether one is."""
    if versions() is None:
        registry.leave_out(name, f"it is FlashAttention-4's own package; {INSTALL}")
        return True
    return False


def limits(problem: Problem) -> tuple[int | None, int | None]:
    """How many keys a row sees (before, after) its own, as FlashAttention takes them; None for no limit."""
    parts = [part.limits for part in problem.mask.runs.parts if part.is_band]
    before = [left for left, _ in parts if left is not None]
    after = [right for _, right in parts if right is not None]
    return min(before, default=None), min(after, default=None)


def unsupported(problem: Problem) -> str | None:
    """Why FlashAttention-4 does not take the problem, or None."""
    if problem.dtype not in ("float16", "bfloat16"):
        return f"dtype is {problem.dtype}; FlashAttention-4 takes float16 and bfloat16"
    if problem.head_dim % ELEMENTS_PER_PIECE or problem.head_dim > LARGEST_HEAD_DIM:
        return f"head_dim is {problem.head_dim}; FlashAttention-4 takes multiples of 8 up to {LARGEST_HEAD_DIM}"
    if problem.tau <= 0:
        return f"scale is {problem.tau:g}; FlashAttention-4 takes the largest score before it scales: above 0"
    if any(limit is not None and limit < 0 for limit in limits(problem)):
        return "the window ends before the row's own key; FlashAttention-4 takes windows from 0"
    return None


def require_support(name: str, problem: Problem, target: Target) -> None:
    """Raise `UnsupportedProblem` if the variant of this name has no kernel of the target for the problem."""
    if target is BLACKWELL and problem.head_dim > BLACKWELL_HEAD_DIM:
        reason = (
            f"head_dim is {problem.head_dim}; here, FlashAttention-4 for Blackwell is used up to {BLACKWELL_HEAD_DIM}"
        )
        raise UnsupportedProblem(name, reason)


def element_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a C-contiguous array, in elements."""
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.insert(0, strides[0] * extent)
    return tuple(strides)


@functools.lru_cache(maxsize=1)
def recorder() -> Any:
    """The module `recording`, which imports PyTorch and CuTe with the environment that they need: seconds."""
    dumps = tempfile.TemporaryDirectory()
    os.environ |= {
        # Without it, CuTe asks the driver. Each compilation sets its own, see `Target`.
        "CUTE_DSL_ARCH": "sm_90a",
        # PTX, with lines of the Python source. CuTe writes it to files.
        "CUTE_DSL_KEEP": "ptx",
        "CUTE_DSL_LINEINFO": "1",
        "CUTE_DSL_DUMP_DIR": dumps.name,
        # Not that fake tensors have no memory, whose address CuTe asks for when it compiles.
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from variants._cute import recording

    recording.FOLDERS.append(dumps)
    return recording
