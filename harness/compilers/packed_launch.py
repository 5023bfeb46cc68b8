"""Launches a kernel of any language through CuPy, with parameters that its toolchain has packed into bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.compilers.compiled_kernel import CompiledKernel, device_argument
from harness.compilers.native_gpu import NativeGpu
from harness.compilers.ptx_text import bind_module
from harness.compilers.tensor_maps import keeping, uploaded
from harness.compilers.toolchain import Call, Toolchain
from harness.model.plan import Launch, map_leaves

if TYPE_CHECKING:
    import numpy as np


def bind_packed(toolchain: Toolchain, launch: Launch, arrays: Mapping[str, Any], gpu: NativeGpu) -> Call:
    """Compile the kernel and return a call that launches its machine code, or its PTX if the toolchain has none.

    Raises what `Toolchain.bind` raises.
    """
    packed = packed_launch(toolchain, launch, arrays, gpu)
    image = toolchain.machine_code(launch.kernel, gpu.arch) or limited(packed.compiled).encode()
    chosen = packed.compiled.configured(launch)
    return keeping(packed.kept, bind_module(image, packed.compiled.entry, chosen, packed.words, gpu))


@dataclass(frozen=True)
class PackedLaunch:
    """A compiled kernel and its packed parameters."""

    compiled: CompiledKernel
    words: tuple[Any, ...]
    """The parameters as CuPy takes them."""
    kept: Any
    """Object that must stay alive as long as the launch may be called, because it owns device memory."""


def packed_launch(toolchain: Toolchain, launch: Launch, arrays: Mapping[str, Any], gpu: NativeGpu) -> PackedLaunch:
    """Compile the kernel and pack the launch's arguments. Raises what `Toolchain.bind` raises."""
    native, kept = uploaded(launch, arrays, gpu, toolchain.tensor_maps_by_value)
    given = tuple(map_leaves(device_argument, argument) for argument in native)
    compiled = toolchain.compile(launch.kernel, given, gpu.arch)
    return PackedLaunch(compiled, tuple(_by_value(word) for word in compiled.pack(given)), kept)


def _by_value(word: bytes) -> np.generic:
    """Return the bytes of a parameter as a NumPy scalar, which CuPy passes by value."""
    import numpy as np

    scalar: np.generic = np.frombuffer(word, f"u{len(word)}")[0] if len(word) in (1, 2, 4, 8) else np.void(word)
    return scalar


def limited(compiled: CompiledKernel, ptx: str | None = None) -> str:
    """Return the PTX of `compiled`, or `ptx`, with the user's register limit, if any, as a directive.

    The driver does not get the limit in another way. `.maxnreg` is written between an entry's parameters and its body
    (PTX ISA, performance-tuning directives).
    """
    from harness.ptx.statements import entry_text

    ptx = compiled.ptx if ptx is None else ptx
    if compiled.max_registers is None:
        return ptx
    entry = entry_text(ptx, compiled.entry)
    assert entry is not None
    return f"{ptx[: entry.end]}\n.maxnreg {compiled.max_registers}\n{ptx[entry.end :]}"
