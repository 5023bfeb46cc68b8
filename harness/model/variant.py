"""Defines a variant: one implementation of an operation, with its plan and its declarations, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from harness.model.invariance import BATCH, INVARIANCES
from harness.model.numerics import Numerics
from harness.model.plan import Plan
from harness.model.tile_sizes import TileSizes
from harness.model.traffic import Traffic
from harness.support.errors import PluginError, UsageError
from harness.support.printable import printable
from harness.support.suggestion import did_you_mean

LONGEST_NAME = 128
"""Maximum characters of a variant's name, which is part of file names of at most 255 bytes."""


def _supports_all(problem: Any) -> str | None:
    return None


@dataclass(frozen=True, kw_only=True)
class Variant:
    """An implementation of an operation. Raises `PluginError` if its name or its numerics are invalid."""

    name: str
    """Name on the command line, such as `fa2-cupy`."""
    plan: Callable[..., Plan]
    """Returns the plan for a problem, or raises `PlanError`. Needs no GPU. With `tiles`, it is called as
    plan(problem, tile=None), with `takes_arch` as plan(problem, arch="sm_90")."""
    operation: str = "attention"
    """Name of the operation that it computes."""
    algorithm: str = "custom"
    """Name of the algorithm, shared by all variants of it."""
    backend: str = "cupy"
    """Toolchain of all its kernels: `cupy` (RawKernel), `numba` (cuda.jit), `ptx` (PtxKernel), `triton` (TritonKernel)
    or `cute` (CuteFunction)."""
    idea: str = ""
    """One line for the command `list`."""
    supports: Callable[[Any], str | None] = field(default=_supports_all)
    """Returns None if a problem is supported, or else a string that states what is supported."""
    claim: Callable[..., Traffic | None] | None = None
    """Closed form of the bytes that it moves, called with the arguments of `plan`. None to claim nothing; it may return
    None for problems that the formula does not cover."""
    tiles: Callable[[Any], Sequence[TileSizes]] | None = None
    """Returns the tile sizes to choose from for a problem, the default first. None if there is no choice."""
    takes: tuple[str, ...] = ("causal",)
    """Optional features that it supports, such as `causal` and `window` (`Problem.features`).
    Problems with other features are unsupported, so that a feature added later breaks no variant."""
    arch: str | None = None
    """The only architecture that runs its kernels, such as `sm_100a`. None if they run on that of the harness's default
    and on later ones."""
    takes_arch: bool = False
    """Whether `plan` takes the architecture that its kernels run on, such as `sm_100a`, as the keyword argument `arch`,
    because it launches others for each. It may raise `UnsupportedProblem` for a problem that those of `arch` lack."""
    deterministic: bool = True
    """Whether equal inputs give equal bits in any order of blocks and warps. Floating-point atomics do not."""
    invariant_to: tuple[str, ...] = (BATCH,)
    """What its bits do not depend on, of `INVARIANCES`: `batch`, the other sequences of a batch; `splits`, its tile
    sizes; `padding`, further rows of queries. A variant with deterministic=False declares none of them."""
    fails_in: tuple[str, ...] = ()
    """Regimes of its operation in which it is expected to fail, such as `hot` for a softmax that does not subtract the
    maximum. `compare` still reports the failure, `fuzz` skips these regimes, and tests require that it fails there."""
    numerics: Numerics = field(default_factory=Numerics)
    """Where it rounds, from which its error budget is derived."""

    def __post_init__(self) -> None:
        if not self.name or any(c.isspace() or c in ",*?[]" for c in self.name):
            raise PluginError(f"variant name {self.name!r} is not usable: no spaces, commas or wildcards")
        if printable(self.name) != self.name:
            raise PluginError(f"variant name {self.name!a} is not usable: it contains invisible characters")
        if len(self.name) > LONGEST_NAME:
            raise PluginError(
                f"variant name {self.name[:20]!r}... has {len(self.name)} characters; it may have {LONGEST_NAME}"
            )
        if unknown := [each for each in self.invariant_to if each not in INVARIANCES]:
            raise PluginError(
                f"variant {self.name!r} has invariant_to={self.invariant_to!r}; choose from {', '.join(INVARIANCES)}, "
                f"not {unknown[0]!r}"
            )
        if not isinstance(self.numerics, Numerics):
            raise PluginError(f"variant {self.name!r} has numerics {self.numerics!r}; it has to be a Numerics(...)")


PLUGIN_ORIGIN = "plugin "
"""Begins the origin of variants that a plugin file registered."""
CALLER_ORIGIN = "the caller"
"""The origin of variants that were passed as objects."""


SIMILAR = 0.7
"""How similar a variant's name is, at least, to be suggested: others' variants have names of their own."""


class Registry:
    """Variants by name, in the order in which they were added."""

    def __init__(self) -> None:
        self._variants: dict[str, Variant] = {}
        self._origins: dict[str, str] = {}
        self._left_out: dict[str, str] = {}
        self.origin = CALLER_ORIGIN
        """Origin of the variants being added, for the message about duplicate names."""

    def add(self, variant: Variant) -> None:
        """Add a variant. Raises `PluginError` if its name is in use."""
        if variant.name in self._variants:
            raise PluginError(
                f"{self.origin} registers variant {variant.name!r}, but {self._origins[variant.name]} "
                "has registered that name already; choose another name"
            )
        self._variants[variant.name] = variant
        self._origins[variant.name] = self.origin

    def leave_out(self, name: str, reason: str) -> None:
        """State why there is no variant of this name, and how to get it, for those who ask for it."""
        self._left_out[name] = reason

    @property
    def left_out(self) -> Mapping[str, str]:
        """Why there is no variant of a name, by name."""
        return self._left_out

    def __iter__(self) -> Iterator[Variant]:
        return iter(self._variants.values())

    def __len__(self) -> int:
        return len(self._variants)

    def origin_of(self, name: str) -> str:
        """Return the module, file or package that registered the variant."""
        return self._origins[name]

    def get(self, name: str) -> Variant:
        """Return the variant of this name. Raises `UsageError` with the most similar name, and a hint at --plugin."""
        if name in self._variants:
            return self._variants[name]
        if name in self._left_out:
            raise UsageError(f"variant {name!r} is not available: {self._left_out[name]}")
        own = any(origin.startswith(PLUGIN_ORIGIN) for origin in self._origins.values())
        file = name if name.endswith(".py") else "FILE.py"
        hint = "" if own else f" For a variant in your own file, add --plugin {file};"
        similar = did_you_mean(name, self._variants, SIMILAR)
        raise UsageError(f"no variant {name!r}{similar}{hint} 'list' shows all variants")

    def select(self, patterns: str | None, operation: str | None = None) -> list[Variant]:
        """Return the variants that match one of the comma-separated patterns, or all if `patterns` is None.

        Only variants of `operation` match a pattern, unless it is None. The full name of a variant selects it for any
        operation. Raises `UsageError` if a pattern matches none.
        """
        offered = [variant for variant in self if operation in (None, variant.operation)]
        if patterns is None:
            return offered
        chosen: dict[str, Variant] = {}
        wanted = [part.strip() for part in patterns.split(",") if part.strip()]
        if not wanted:
            raise UsageError(f"{patterns!r} names no variant; 'list' shows all variants")
        for pattern in wanted:
            matches = [v for v in offered if fnmatchcase(v.name, pattern)]
            if not matches:
                matches = [self.get(pattern)]
            chosen.update((v.name, v) for v in matches)
        return list(chosen.values())
