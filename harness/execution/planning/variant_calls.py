"""Calls a variant's own functions (`supports`, `plan`, `claim`, `tiles`) and turns any failure into one line."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.compilers.compiled_kernel import CompiledKernel, DevicePointer
from harness.compilers.toolchains import check_backend, check_kernels, compile_kernel
from harness.model.plan import (
    GRID_LIMITS,
    BlockSample,
    Launch,
    Plan,
    Reshaped,
    View,
    in_three_dimensions,
    leaves,
    map_leaves,
)
from harness.model.problem import BaseProblem
from harness.model.spread import Spread
from harness.model.tensor_map import TensorMap
from harness.model.tile_sizes import TileSizes
from harness.model.traffic import Traffic
from harness.model.variant import Variant
from harness.support.errors import PlanError, PlannerLost, SandboxError, UnsupportedProblem
from harness.support.exception_place import raise_interrupt, where_and_what

BUFFER_ALIGNMENT_BYTES = 256
"""Alignment of the placeholder addresses for compiling without allocated memory, as a GPU's allocator aligns."""
MOST_CLAIMED_BYTES = 2**63
"""Upper limit of a claim: no memory is as large, and the store's integer columns hold no more."""


def make_plan(variant: Variant, problem: BaseProblem, arch: str | None = None) -> Plan:
    """Make the variant's plan. Its buffers, its arguments and the toolchain of its kernels are checked.

    `arch` is the architecture that will run it; None for the variant's default.

    Raises `UnsupportedProblem` with the variant's reason; `PlanError` if planning fails, returns no plan, or returns
    kernels of another toolchain or of none; `PluginError` if the variant names an unknown toolchain.
    """
    refusal = refusal_of(variant, problem, arch)
    if refusal is not None:
        raise UnsupportedProblem(variant.name, refusal)
    return checked_plan(variant, problem, arch=arch)


def sampled(plan: Plan, fewer: Plan, spread: Spread) -> Plan:
    """Return the plan of the huge problem with the blocks of the used entries selected in each launch.

    A launch whose grid has as many blocks along one axis as there are entries, or a multiple, is sampled: the blocks of
    an entry lie next to each other. A launch whose grid does not depend on the number of entries runs as a whole,
    unless it works on them nevertheless, as a persistent kernel does. `fewer` is the variant's plan for `spread.fewer`,
    which has one entry less. If blocks cannot be selected, `Plan.unsampled` says why.
    """
    assert spread.fewer is not None
    if len(plan.launches) != len(fewer.launches):
        return dataclasses.replace(plan, unsampled="its launches change with the number of sequences")
    here, there = plan.all_buffers(spread.problem), fewer.all_buffers(spread.fewer)
    # Tables and lists of integers are read as a whole, by kernels that prepare what all entries share.
    spread_out = {name for name, buffer in here.items() if buffer.dtype != "int32" and buffer != there.get(name)}
    launches = []
    for launch, other in zip(plan.launches, fewer.launches):
        sample = _sample(launch, other, spread, spread_out)
        if isinstance(sample, str):
            return dataclasses.replace(plan, unsampled=f"kernel {launch.kernel_name} {sample}")
        launches.append(dataclasses.replace(launch, sample=sample))
    return dataclasses.replace(plan, launches=tuple(launches))


def _sample(launch: Launch, other: Launch, spread: Spread, spread_out: set[str]) -> BlockSample | str | None:
    """Return the sample, None if all blocks run, or the reason why there is no sample."""
    grid, fewer = in_three_dimensions(launch.grid), in_three_dimensions(other.grid)
    entries = spread.extent.entries
    axes = [axis for axis in range(3) if grid[axis] != fewer[axis]]
    if not axes:
        given = (each for arg in launch.args for each in leaves(arg))
        named = (each.buffer if isinstance(each, (TensorMap, Reshaped)) else each for each in given)
        if any(isinstance(name, str) and name in spread_out for name in named):
            return f"has a grid of {_shown(grid)} blocks for any number of sequences"
        return None
    each, rest = divmod(grid[axes[0]], entries)
    if len(axes) > 1 or rest or fewer[axes[0]] != each * (entries - 1):
        return f"has a grid of {_shown(grid)} blocks, which is not in proportion to the {entries:,} sequences"
    if launch.cluster is not None and each % in_three_dimensions(launch.cluster)[axes[0]]:
        return "has clusters of blocks of several sequences"
    return BlockSample(axes[0], each, spread.extent.places)


def _shown(grid: tuple[int, int, int]) -> str:
    return " x ".join(f"{extent:,}" for extent in grid)


def checked_plan(
    variant: Variant, problem: BaseProblem, tile: TileSizes | None = None, arch: str | None = None
) -> Plan:
    """Like `make_plan`, for a problem that the variant supports, with the given tile sizes if any."""
    spread = problem.spread
    if spread is not None:
        plan = checked_plan(variant, spread.problem, tile, arch)
        fewer = None if spread.fewer is None else checked_plan(variant, spread.fewer, tile, arch)
        return plan if fewer is None else sampled(plan, fewer, spread)
    given = {"arch": arch} if variant.takes_arch and arch is not None else {}
    try:
        plan = variant.plan(problem, **given) if tile is None else variant.plan(problem, tile, **given)
    except UnsupportedProblem:
        raise
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
    """Yield each launch as it is made, with its kernel's PTX for `arch`, such as `sm_90`, without allocating buffers.

    Raises `CompileError`, and `PlanError` if arguments do not fit their kernel.
    """
    views = plan.views(problem)
    for launch in plan.launches:
        args = tuple(map_leaves(lambda leaf: _stand_in(leaf, views), each) for each in launch.args)
        compiled = compile_kernel(launch.kernel, args, arch)
        yield compiled.configured(launch), compiled


def _stand_in(argument: Any, views: Mapping[str, View]) -> Any:
    if isinstance(argument, Reshaped):
        return DevicePointer(BUFFER_ALIGNMENT_BYTES, argument.shape, views[argument.buffer].dtype)
    if not isinstance(argument, str):
        return argument
    view = views[argument]
    return DevicePointer(BUFFER_ALIGNMENT_BYTES, view.shape, view.dtype, view.strides)


def refusal_of(variant: Variant, problem: BaseProblem, arch: str | None = None) -> str | None:
    """Why the variant does not support the problem on the architecture `arch`, in one line.

    None if it does. Without `arch`, any architecture counts. Raises `PlanError` if the check fails.
    """
    if variant.arch is not None and arch is not None and arch.rstrip("af") != variant.arch.rstrip("af"):
        return f"its kernels run on {variant.arch} alone, not on {arch}; on the emulator, add --arch {variant.arch}"
    if variant.operation != problem.operation:
        return f"it computes {variant.operation}, not {problem.operation}; add --operation {variant.operation}"
    refusal = declared_refusal(variant, problem)
    if refusal is not None:
        return " ".join(refusal.split()) + _hint_at_sizes(problem)
    missing = untaken_features(variant, problem)
    return f"it does not support {' and '.join(missing)} (not listed in Variant.takes)" if missing else None


def _hint_at_sizes(problem: BaseProblem) -> str:
    """How to avoid a batch that is too large because its sequences lie far apart; empty if it is not."""
    spread, (_, most, _) = problem.spread, GRID_LIMITS
    if spread is None or spread.extent.entries <= most:
        return ""
    return f"; --far needs larger sequences for a smaller batch: {-(-spread.far // (most - 1)):,} elements or more each"


def untaken_features(variant: Variant, problem: BaseProblem) -> list[str]:
    """The problem's features, beyond the plainest problem, that the variant does not declare."""
    return [feature for feature in problem.features if feature not in variant.takes]


def declared_refusal(variant: Variant, problem: BaseProblem) -> str | None:
    """The reason returned by the variant's own `supports`; None if supported. Raises `PlanError` if the call fails."""
    try:
        refusal = variant.supports(problem.of_kernels)
    except BaseException as error:
        raise_interrupt(error)
        raise _failed("supports", error) from error
    if not isinstance(refusal, (str, type(None))):
        raise PlanError(
            f"supports() returned {refusal!r}; it must return None if the problem is supported, or a string that "
            "states what is supported"
        )
    return refusal


def claimed_traffic(variant: Variant, problem: BaseProblem, tile: TileSizes | None = None) -> Traffic | None:
    """The traffic that the variant claims; None if it claims nothing for this problem.

    Raises `PlanError` if its formula fails.
    """
    if variant.claim is None or problem.spread is not None:
        return None  # a claim is about all blocks
    try:
        claim = variant.claim(problem) if tile is None else variant.claim(problem, tile)
    except BaseException as error:
        raise_interrupt(error)
        raise _failed("claim", error) from error
    if claim is None:
        return None
    if not isinstance(claim, Traffic):
        kind = type(claim).__name__
        raise PlanError(f"claim() returned a {kind}; it has to return a Traffic, or None to claim nothing")
    for field in ("read_bytes", "write_bytes", "further_read_bytes"):
        size = getattr(claim, field)
        if isinstance(size, bool) or not hasattr(size, "__index__"):
            raise PlanError(f"claim() returned {field}={size!r}; it has to be a whole number of bytes")
        if not 0 <= size < MOST_CLAIMED_BYTES:
            shown = "2^63 or more" if size > 0 else f"{max(size, -MOST_CLAIMED_BYTES)}"
            raise PlanError(f"claim() returned {field}={shown}; it has to be from 0 to 2^63 - 1 bytes")
    return claim


def declared_tiles(variant: Variant, problem: BaseProblem) -> Sequence[TileSizes]:
    """The tile sizes that the variant declares, the default first; empty if it declares none.

    Raises `PlanError` if its `tiles` fails or returns anything but tiles with the same names.
    """
    if variant.tiles is None:
        return ()
    try:
        tiles = list(variant.tiles(problem.of_kernels))
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
