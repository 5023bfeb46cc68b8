"""What must hold between several runs of one kernel, or within one, without knowing the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.model.numerics import Numerics

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Trial:
    """A problem with inputs, what a kernel made of them, and the kernel itself, to be run on other inputs."""

    problem: Any
    """Of the operation's own class."""
    inputs: Arrays
    outputs: Arrays
    """All that are not optional, and those that the kernel stores."""
    run: Callable[[Any, Arrays], Arrays]
    """Problem and inputs -> outputs."""
    numerics: Numerics
    """Where the kernel rounds: what budgets are derived from."""


@dataclass(frozen=True)
class Property:
    """One thing that must hold."""

    name: str
    """How the command line calls it."""
    idea: str
    """One line: what has to stay, and under what."""
    violation: Callable[[Trial], str | None]
    """None, or what does not hold and where."""
    same_bits: bool = False
    """It asks for the very bits, which not every variant claims."""
