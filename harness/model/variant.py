"""What a variant is: one implementation, its plan, and what it says of itself. Plain data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.model.numerics import Numerics
from harness.model.plan import Plan
from harness.model.tile_sizes import TileSizes
from harness.model.traffic import Traffic
from harness.support.errors import PluginError
from harness.support.printable import printable

LONGEST_NAME = 128
"""Characters of a variant's name: it is a part of file names, which have 255 bytes at most."""


def _supports_all(problem: Any) -> str | None:
    return None


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One implementation of an operation."""

    name: str
    """How the command line calls it, such as `fa2-cupy`."""
    plan: Callable[..., Plan]
    """Problem -> Plan. Needs no GPU. Where there are `tiles`: plan(problem, tile=None)."""
    operation: str = "attention"
    """What it computes: the name of an operation."""
    algorithm: str = "custom"
    """Variants of one algorithm share this word."""
    backend: str = "cupy"
    """The toolchain that all its kernels are of: `cupy` (RawKernel), `numba` (cuda.jit) or `ptx` (PtxKernel)."""
    idea: str = ""
    """One line for `list`."""
    supports: Callable[[Any], str | None] = field(default=_supports_all)
    """None, or the reason why this problem is out of reach."""
    claim: Callable[..., Traffic] | None = None
    """The closed form of the bytes that it moves, or None where it claims nothing. Called as `plan` is."""
    tiles: Callable[[Any], Sequence[TileSizes]] | None = None
    """Problem -> the tile sizes to choose from, the default first. None where there is nothing to choose."""
    takes: tuple[str, ...] = ("causal",)
    """What it can do besides the plainest problem: features such as `causal` and `window` (`Problem.features`). A
    problem that has another one is out of its reach, so that a feature added later breaks no variant."""
    deterministic: bool = True
    """Equal inputs give equal bits, in whatever order blocks and warps run. Floating-point atomics do not."""
    fails_in: tuple[str, ...] = ()
    """Regimes of its operation in which it is expected to fail, such as `hot` for a softmax that does not subtract the
    maximum. `compare` still shows that it fails, `fuzz` leaves them out, and tests demand that it does fail there."""
    numerics: Numerics = field(default_factory=Numerics)
    """Where it rounds: what its budget of error is derived from."""

    def __post_init__(self) -> None:
        if not self.name or any(c.isspace() or c in ",*?[]" for c in self.name):
            raise PluginError(f"variant name {self.name!r} is not usable: no blanks, commas or wildcards")
        if printable(self.name) != self.name:
            raise PluginError(f"variant name {self.name!a} is not usable: it has characters that cannot be seen")
        if len(self.name) > LONGEST_NAME:
            raise PluginError(
                f"variant name {self.name[:20]!r}... has {len(self.name)} characters; it may have {LONGEST_NAME}"
            )
        if not isinstance(self.numerics, Numerics):
            raise PluginError(f"variant {self.name!r} has numerics {self.numerics!r}; it has to be a Numerics(...)")
