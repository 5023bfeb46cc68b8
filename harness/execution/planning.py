"""A variant's own functions, called with care: they are a user's code, and whatever they do becomes one clear line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from harness.compilers.compiled_kernel import CompiledKernel, DevicePointer
from harness.compilers.toolchains import check_backend, check_kernels, compile_kernel
from harness.model.plan import Launch, Plan
from harness.model.problem import BaseProblem
from harness.model.tile_sizes import TileSizes
from harness.model.traffic import Traffic
from harness.model.variant import Variant
from harness.support.errors import PlanError, PlannerLost, SandboxError, UnsupportedProblem
from harness.support.exception_place import raise_interrupt, where_and_what

BUFFER_ALIGNMENT_BYTES = 256
"""An address as a GPU's allocator gives it, for who compiles without any memory; compilers do not look at it."""
MOST_CLAIMED_BYTES = 2**63
"""No memory has as many, and they no longer fit into a column of the store."""


def make_plan(variant: Variant, problem: BaseProblem) -> Plan:
    """The variant's plan; its buffers and arguments are checked, and that its kernels are of the variant's toolchain.

    Raises `UnsupportedProblem` with the variant's reason, `PlanError` where planning fails or gives no plan or kernels
    of another toolchain or of none, `PluginError` where the variant says a toolchain that there is not.
    """
    refusal = refusal_of(variant, problem)
    if refusal is not None:
        raise UnsupportedProblem(variant.name, refusal)
    return checked_plan(variant, problem)


def checked_plan(variant: Variant, problem: BaseProblem, tile: TileSizes | None = None) -> Plan:
    """`make_plan` of a problem that the variant takes, with these tile sizes where they are given."""
    try:
        plan = variant.plan(problem) if tile is None else variant.plan(problem, tile)
    except BaseException as error:
        raise_interrupt(error)
        raise _failed("plan", error) from error
    if not isinstance(plan, Plan):
        raise PlanError(f"plan() returned a {type(plan).__name__}; it has to return a Plan")
    plan.all_buffers(problem)
    check_backend(variant)
    check_kernels(variant, [launch.kernel for launch in plan.launches])
    return plan


def compiled_launches(plan: Plan, problem: BaseProblem, arch: str) -> Iterator[tuple[Launch, CompiledKernel]]:
    """Each launch with its kernel's PTX for `arch`, such as `sm_90`, with no memory behind its buffers.

    Raises `CompileError`, and `PlanError` where arguments do not fit their kernel.
    """
    buffers = plan.all_buffers(problem)
    for launch in plan.launches:
        args = tuple(
            DevicePointer(BUFFER_ALIGNMENT_BYTES, buffers[each].shape, buffers[each].dtype)
            if isinstance(each, str)
            else each
            for each in launch.args
        )
        yield launch, compile_kernel(launch.kernel, args, arch)


def refusal_of(variant: Variant, problem: BaseProblem) -> str | None:
    """Why the variant does not take the problem, in one line; None where it does. Raises `PlanError` where it fails."""
    if variant.operation != problem.operation:
        return f"it computes {variant.operation}, not {problem.operation}"
    refusal = declared_refusal(variant, problem)
    if refusal is not None:
        return " ".join(refusal.split())
    missing = untaken_features(variant, problem)
    return f"it does not say that it takes {' and '.join(missing)} (Variant.takes)" if missing else None


def untaken_features(variant: Variant, problem: BaseProblem) -> list[str]:
    """What the problem has beyond the plainest one that the variant does not say it takes."""
    return [feature for feature in problem.features if feature not in variant.takes]


def declared_refusal(variant: Variant, problem: BaseProblem) -> str | None:
    """What the variant's own `supports` says. Raises `PlanError` where it fails."""
    try:
        refusal = variant.supports(problem)
    except BaseException as error:
        raise_interrupt(error)
        raise _failed("supports", error) from error
    if not isinstance(refusal, (str, type(None))):
        raise PlanError(f"supports() returned {refusal!r}; it has to return None, or the reason as text")
    return refusal


def claimed_traffic(variant: Variant, problem: BaseProblem, tile: TileSizes | None = None) -> Traffic | None:
    """The bytes that the variant claims; None where it claims nothing. Raises `PlanError` where its formula fails."""
    if variant.claim is None:
        return None
    try:
        claim = variant.claim(problem) if tile is None else variant.claim(problem, tile)
    except BaseException as error:
        raise_interrupt(error)
        raise _failed("claim", error) from error
    if not isinstance(claim, Traffic):
        raise PlanError(f"claim() returned a {type(claim).__name__}; it has to return a Traffic")
    for field in ("read_bytes", "write_bytes"):
        size = getattr(claim, field)
        if isinstance(size, bool) or not hasattr(size, "__index__"):
            raise PlanError(f"claim() returned {field}={size!r}; it has to be a whole number of bytes")
        if not 0 <= size < MOST_CLAIMED_BYTES:
            shown = "2^63 or more" if size > 0 else f"{max(size, -MOST_CLAIMED_BYTES)}"
            raise PlanError(f"claim() returned {field}={shown}; it has to be from 0 to 2^63 - 1 bytes")
    return claim


def declared_tiles(variant: Variant, problem: BaseProblem) -> Sequence[TileSizes]:
    """The tile sizes that the variant declares, the default first; empty where it declares none.

    Raises `PlanError` where its `tiles` fails or gives anything but tiles that have the same names.
    """
    if variant.tiles is None:
        return ()
    try:
        tiles = list(variant.tiles(problem))
    except BaseException as error:
        raise_interrupt(error)
        raise _failed("tiles", error) from error
    if not tiles:
        raise PlanError("tiles() returned none; the first of them has to be the default")
    for tile in tiles:
        # A bool would pass for an int.
        if not isinstance(tile, Mapping) or not tile or any(type(size) is not int for size in tile.values()):
            raise PlanError(f'tiles() returned {tile!r} among others; each has to be like {{"Br": 64, "Bc": 32}}')
        if set(tile) != set(tiles[0]):
            raise PlanError(f"tiles() returned {dict(tiles[0])} and {dict(tile)}; all need the same names")
    return tiles


def _failed(function: str, error: BaseException) -> SandboxError:
    if isinstance(error, PlannerLost):
        return type(error)(f"{function}(): {error}")
    if isinstance(error, SandboxError):
        return PlanError(str(error))
    return PlanError(f"{function}() failed: {where_and_what(error)}")
