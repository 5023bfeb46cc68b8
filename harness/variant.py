"""What a variant is, what a plan is, and the registry that holds them. Plain data: nothing here needs a GPU."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from harness.errors import PlanError, PluginError, UsageError
from harness.problem import Problem

GRID_LIMITS = (2**31 - 1, 65535, 65535)
BLOCK_LIMITS = (1024, 1024, 64)
"""CUDA C++ Programming Guide, table of technical specifications: the same for every compute capability."""
BACKENDS = ("cupy", "numba")
TileSizes = Mapping[str, int]
"""One choice of tile sizes, such as {"Br": 64, "Bc": 32}; the names are the variant's own."""
ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8, "int32": 4, "int64": 8, "uint8": 1}


def tile_text(tile: TileSizes) -> str:
    """{"Br": 32, "Bc": 64} -> `Br=32,Bc=64`, as --tile takes it."""
    return ",".join(f"{name}={size}" for name, size in tile.items())


@dataclass(frozen=True)
class Buffer:
    """One array in the GPU's memory. bfloat16 is handed to kernels as its bits (uint16 in NumPy and Numba)."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in ELEMENT_BYTES:
            raise PlanError(f"buffer {self.name!r} has dtype {self.dtype!r}; choose one of {', '.join(ELEMENT_BYTES)}")
        if any(extent < 0 for extent in self.shape):
            raise PlanError(f"buffer {self.name!r} has a negative extent in its shape {self.shape}")

    @property
    def size_bytes(self) -> int:
        """Bytes that the buffer takes."""
        return math.prod(self.shape) * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True)
class Launch:
    """One kernel launch.

    `kernel` is the ecosystem's own object: a `cupy.RawKernel` or a function decorated with `numba.cuda.jit`.
    An argument is the name of a buffer, or a scalar (write `np.int32(n)`, `np.float32(x)`: the type is passed on
    as it is).
    """

    kernel: Any
    grid: tuple[int, ...]
    """Thread blocks in x, y, z."""
    block: tuple[int, ...]
    """Threads per block in x, y, z."""
    args: tuple[Any, ...]
    shared_bytes: int = 0
    """Dynamic shared memory per block."""

    def __post_init__(self) -> None:
        for what, extents in (("grid", self.grid), ("block", self.block)):
            if not 1 <= len(extents) <= 3 or any(extent < 1 for extent in extents):
                raise PlanError(f"{what} is {extents}; it needs one to three whole numbers of at least 1")
        for what, extents, limits in (("grid", self.grid, GRID_LIMITS), ("block", self.block, BLOCK_LIMITS)):
            if any(extent > limit for extent, limit in zip(extents, limits)):
                raise PlanError(f"{what} is {extents}; a GPU takes at most {limits} in x, y, z")
        if math.prod(self.block) > 1024:
            raise PlanError(f"block is {self.block}: {math.prod(self.block)} threads, and a GPU takes at most 1024")

    @property
    def kernel_name(self) -> str:
        """The name that the user gave the kernel."""
        name = getattr(self.kernel, "name", None) or getattr(self.kernel, "__name__", None)
        return str(name or type(self.kernel).__name__)


@dataclass(frozen=True)
class Plan:
    """All that one run needs, as data: what to allocate and what to launch, in order.

    Q, K, V and O are always there (shapes: `Problem`). `buffers` are allocated besides; one named `lse`, of shape
    (batch, heads, q_len) in float32, is the log-sum-exp that the variant stores. They start with garbage.
    """

    launches: tuple[Launch, ...]
    buffers: tuple[Buffer, ...] = ()

    def all_buffers(self, problem: Problem) -> dict[str, Buffer]:
        """Every buffer by name: Q, K, V, O and the plan's own. Raises `PlanError` on a clash or an unknown name."""
        buffers = {
            "Q": Buffer("Q", problem.q_shape, problem.dtype),
            "K": Buffer("K", problem.kv_shape, problem.dtype),
            "V": Buffer("V", problem.kv_shape, problem.dtype),
            "O": Buffer("O", problem.q_shape, problem.dtype),
        }
        for buffer in self.buffers:
            if buffer.name in buffers:
                raise PlanError(f"the plan has two buffers named {buffer.name!r} (Q, K, V and O are always there)")
            buffers[buffer.name] = buffer
        lse = buffers.get("lse")
        if lse is not None and (lse.shape != problem.lse_shape or lse.dtype != "float32"):
            raise PlanError(f"buffer 'lse' is {lse.dtype}{lse.shape}; it has to be float32{problem.lse_shape}")
        for launch in self.launches:
            for argument in launch.args:
                if isinstance(argument, str) and argument not in buffers:
                    raise PlanError(
                        f"kernel {launch.kernel_name} is given a buffer {argument!r} that the plan does not have; "
                        f"it has {', '.join(buffers)}"
                    )
        return buffers

    def allocated_bytes(self, problem: Problem) -> int:
        """What the plan allocates beyond Q, K and V: scratch and outputs."""
        return sum(b.size_bytes for name, b in self.all_buffers(problem).items() if name not in ("Q", "K", "V"))


@dataclass(frozen=True)
class Traffic:
    """Bytes that a variant claims to move, at the `sectors` level: 32 x distinct 32-byte sectors per warp request."""

    read_bytes: int
    write_bytes: int

    @property
    def total_bytes(self) -> int:
        """Read and written."""
        return self.read_bytes + self.write_bytes


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """Where a variant rounds, as far as it says so: each fact narrows the error that it is allowed.

    What is left at its default may be done in any way in which a correct kernel does it, in any loop order. All
    variants have to sum in float32, whatever the problem's dtype. What is declared is believed: a variant that does not
    keep to it fails.
    """

    scores: str = "problem"
    """How S = tau Q K^T is stored before the softmax reads it: in the `problem`'s dtype, or `float32` throughout."""
    weights: str = "problem"
    """The same for P, as V is multiplied by it. The denominator may be summed from P before that rounding."""
    functions: str = "fast"
    """`accurate`: expf of S - m, so that the maximum itself gets weight 1, logf and division, as CUDA or libdevice has
    them. `__expf`: the same with that in place of expf (fast_expf in libdevice). `fast`: any of these, ex2.approx,
    __logf, approximate division, log2 e folded into the scale."""
    sums: str = "truncated"
    """`nearest`: every addition rounds to nearest, or is a fused multiply-add. `truncated`: tensor cores cut off."""
    one_score: bool = False
    """The sum over V and the denominator see the same bits of S: it is computed once, or again by the same code."""
    divides_last: bool = False
    """O is divided, or P is, by the finished denominator only, and never by that of the keys so far."""

    def __post_init__(self) -> None:
        choices: dict[str, tuple[str, ...]] = {"scores": ("problem", "float32"), "weights": ("problem", "float32")}
        choices |= {"functions": ("fast", "__expf", "accurate"), "sums": ("truncated", "nearest")}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise PluginError(f"numerics have {name}={getattr(self, name)!r}; choose {' or '.join(allowed)}")


def _supports_all(problem: Problem) -> str | None:
    return None


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One implementation of attention."""

    name: str
    """How the command line calls it, such as `fa2-cupy`."""
    plan: Callable[..., Plan]
    """Problem -> Plan. Needs no GPU. Where there are `tiles`: plan(problem, tile=None)."""
    algorithm: str = "custom"
    """Variants of one algorithm share this word."""
    backend: str = "cupy"
    """`cupy` (RawKernel) or `numba` (cuda.jit)."""
    idea: str = ""
    """One line for `list`."""
    supports: Callable[[Problem], str | None] = field(default=_supports_all)
    """None, or the reason why this problem is out of reach."""
    claim: Callable[..., Traffic] | None = None
    """The closed form of the bytes that it moves, or None where it claims nothing. Called as `plan` is."""
    tiles: Callable[[Problem], Sequence[TileSizes]] | None = None
    """Problem -> the tile sizes to choose from, the default first. None where there is nothing to choose."""
    deterministic: bool = True
    """The same inputs give the same bits, in whatever order blocks and warps run. Floating-point atomics do not."""
    numerics: Numerics = field(default_factory=Numerics)
    """Where it rounds: what its budget of error is derived from."""

    def __post_init__(self) -> None:
        if not self.name or any(c.isspace() or c in ",*?[]" for c in self.name):
            raise PluginError(f"variant name {self.name!r} is not usable: no blanks, commas or wildcards")
        if self.backend not in BACKENDS:
            raise PluginError(f"variant {self.name!r} has backend {self.backend!r}; choose {' or '.join(BACKENDS)}")
        if not isinstance(self.numerics, Numerics):
            raise PluginError(f"variant {self.name!r} has numerics {self.numerics!r}; it has to be a Numerics(...)")


class Registry:
    """The variants by name, in the order in which they were added."""

    def __init__(self) -> None:
        self._variants: dict[str, Variant] = {}
        self._origins: dict[str, str] = {}
        self.origin = "the caller"
        """Who is adding right now; named when two variants clash."""

    def add(self, variant: Variant) -> None:
        """Add one variant. Raises `PluginError` where its name is taken."""
        if variant.name in self._variants:
            raise PluginError(
                f"{self.origin} registers variant {variant.name!r}, but {self._origins[variant.name]} "
                "has registered that name already; choose another name"
            )
        self._variants[variant.name] = variant
        self._origins[variant.name] = self.origin

    def __iter__(self) -> Iterator[Variant]:
        return iter(self._variants.values())

    def __len__(self) -> int:
        return len(self._variants)

    def origin_of(self, name: str) -> str:
        """Which module, file or package registered the variant."""
        return self._origins[name]

    def get(self, name: str) -> Variant:
        """The variant of that name. Raises `UsageError` with the nearest name."""
        if name in self._variants:
            return self._variants[name]
        near = difflib.get_close_matches(name, self._variants, n=1, cutoff=0.3)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise UsageError(f"no variant {name!r}{hint} 'list' shows all")

    def select(self, patterns: str | None) -> list[Variant]:
        """The variants that match one of the comma-separated patterns. Raises `UsageError` where one matches none."""
        if patterns is None:
            return list(self)
        chosen: dict[str, Variant] = {}
        wanted = [part.strip() for part in patterns.split(",") if part.strip()]
        if not wanted:
            raise UsageError(f"{patterns!r} names no variant; 'list' shows all")
        for pattern in wanted:
            matches = [v for v in self if fnmatchcase(v.name, pattern)]
            if not matches:
                self.get(pattern)
            chosen.update((v.name, v) for v in matches)
        return list(chosen.values())
