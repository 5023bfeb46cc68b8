"""Single instructions on the emulator: PTX text around them, arrays of operands in, the results' bits out.

Each thread takes one set of operands. They are loaded and stored as raw bits, so that NaN payloads and signs of zero
count. Many cases share one module, because each module costs one run of LLVM.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from lanes import is_exhaustive

from harness.emulator.abi import layout as at
from harness.emulator.launch.configuration import Geometry, LaunchOptions
from harness.emulator.launch.kernel_launch import launch
from harness.emulator.launch.memory.aligned_memory import aligned_zeros
from harness.emulator.launch.memory.device_memory import DeviceBuffer
from harness.emulator.launch.tensor_maps import encode
from harness.emulator.native.kernel_cache import native_kernel
from harness.emulator.native.tier import Tier
from harness.model.tensor_map import TensorMap
from scripts.recording.opcode_kernel import HEADER, LISTENERS, Case, CaseModule, Launched

Array = npt.NDArray[Any]

_STEP_LIMIT = 1_000_000
_OPTIMIZED_OF = 1 if is_exhaustive() else 5
"""Each kernel runs once, for a moment, and most of its time is LLVM's: one in so many is optimized, always the same."""


def case(text: str, results: str, *operands: Array) -> Case:
    """A `Case`; `results` is one type or two, such as `b32` or `b32 pred`."""
    return Case(text, operands, tuple(results.split()))


def run_cases(cases: Sequence[Case]) -> list[tuple[Array, ...]]:
    """The results' bits of each case, one array per result. A case's operands are broadcast against each other."""
    module = CaseModule(cases)
    results = np.zeros(module.result_bytes, dtype=np.uint8)
    run_ptx(module.text, {"operands": module.operands, "results": results}, module.grid, module.block, module=module)
    return module.unpack(results)


def run_case(text: str, results: str, *operands: Array) -> Array:
    """The first result of a single case."""
    return run_cases([case(text, results, *operands)])[0][0]


Check = tuple[Case, tuple[Array, ...]]


def check(checks: Sequence[Check], nan_of: Callable[[Array], Array] | None = None) -> None:
    """Run cases and compare every result bit by bit; `nan_of` tells NaNs, of which any one is as good as another."""
    for (single, expected), found in zip(checks, run_cases([single for single, _ in checks])):
        assert len(found) == len(expected), single.text
        for got, wanted in zip(found, expected):
            assert got.dtype == wanted.dtype and got.shape == wanted.shape, single.text
            wrong = got != wanted
            if nan_of is not None:
                wrong &= ~(nan_of(got) & nan_of(wanted))
            assert not wrong.any(), _report(single, got, wanted, int(np.argmax(wrong)), int(wrong.sum()))


def _report(single: Case, got: Array, wanted: Array, place: int, count: int) -> str:
    operands = [hex(o.reshape(-1)[place]) for o in np.broadcast_arrays(*single.operands)]
    return (
        f"{single.text} with {', '.join(operands)} gives {hex(got[place])} instead of {hex(wanted[place])}; "
        f"{count} of {got.size} results are wrong"
    )


def _tier_of(text: str) -> Tier:
    return Tier.BASELINE if zlib.crc32(text.encode()) % _OPTIMIZED_OF else Tier.OPTIMIZED


def run_ptx(
    text: str,
    buffers: Mapping[str, Array],
    grid: int | tuple[int, int, int] = 1,
    block: int | tuple[int, int, int] = 32,
    shared_bytes: int = 0,
    scalars: Sequence[bytes | TensorMap] = (),
    seed: int = 0,
    entry: str = "kernel",
    module: CaseModule | None = None,
    tier: Tier | None = None,
) -> None:
    """Launch a kernel whose parameters are pointers to the buffers, then the scalars; the arrays are updated."""
    memory = []
    before = {name: array.reshape(-1).view(np.uint8).copy() for name, array in buffers.items()}
    for name, array in buffers.items():
        memory.append(DeviceBuffer(name, aligned_zeros(array.nbytes)[: array.nbytes]))
        memory[-1].data[:] = array.reshape(-1).view(np.uint8)
    addresses = {name: at.buffer_address(index) for index, name in enumerate(buffers)}
    pointers = [address.to_bytes(8, "little") for address in addresses.values()]
    values = [encode(x, addresses[x.buffer]).tobytes() if isinstance(x, TensorMap) else x for x in scalars]
    geometry = Geometry(_three(grid), _three(block), shared_bytes)
    options = LaunchOptions(_STEP_LIMIT, 2, seed)
    kernel = native_kernel(text, entry, tier=tier or _tier_of(text))
    launch(kernel, entry, geometry, (*pointers, *values), memory, options)
    for array, buffer in zip(buffers.values(), memory):
        array.reshape(-1).view(np.uint8)[:] = buffer.data
    after = {name: array.reshape(-1).view(np.uint8).copy() for name, array in buffers.items()}
    shape = (_three(grid), _three(block), shared_bytes, tuple(scalars))
    for listener in LISTENERS:
        listener(Launched(text, entry, *shape, before, after, module))


def run_body(
    body: str, buffers: Mapping[str, Array], declarations: str = "", directives: str = "", **geometry: Any
) -> None:
    """Launch a kernel of these statements. It finds each buffer's address in the register of its name, and `tid`.

    Free registers: r0 to r31 (b32), q0 to q31 (b64), h0 to h15 (b16), p0 to p7. `declarations` stand before the kernel,
    `directives` between its parameters and its body.
    """
    lines = [HEADER, declarations]
    parameters = ", ".join(f".param .u64 {name}_0" for name in buffers)
    lines.append(f".visible .entry kernel({parameters}){directives and ' ' + directives} {{")
    lines.append(".reg .b32 r<32>, tid; .reg .b64 q<32>; .reg .b16 h<16>; .reg .pred p<8>;")
    for name in buffers:
        lines.append(f".reg .b64 {name}; ld.param.u64 {name}, [{name}_0];")
    run_ptx("\n".join([*lines, "mov.u32 tid, %tid.x;", body, "ret;", "}"]), buffers, **geometry)


def _three(extents: int | tuple[int, int, int]) -> tuple[int, int, int]:
    return (extents, 1, 1) if isinstance(extents, int) else extents
