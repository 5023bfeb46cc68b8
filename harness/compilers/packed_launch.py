"""A native launch whose parameters are packed here: plain bytes to CuPy, whatever language the kernel is of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.compilers.compiled_kernel import CompiledKernel, DevicePointer
from harness.compilers.native_gpu import NativeGpu
from harness.compilers.ptx_text import bind_module
from harness.compilers.tensor_maps import keeping, uploaded
from harness.compilers.toolchain import Call, Toolchain
from harness.model.plan import Launch

if TYPE_CHECKING:
    import numpy as np


def bind_packed(toolchain: Toolchain, launch: Launch, arrays: Mapping[str, Any], gpu: NativeGpu) -> Call:
    """Compiled by `toolchain`, and launched as the machine code that it has, else as the PTX.

    Raises what `Toolchain.bind` does.
    """
    packed = packed_launch(toolchain, launch, arrays, gpu)
    image = toolchain.machine_code(launch.kernel, gpu.arch) or limited(packed.compiled).encode()
    return keeping(packed.kept, bind_module(image, packed.compiled.entry, launch, packed.words, gpu))


@dataclass(frozen=True)
class PackedLaunch:
    """A compiled kernel and its parameters."""

    compiled: CompiledKernel
    words: tuple[Any, ...]
    """As CuPy passes them on."""
    kept: Any
    """What has to stay in the GPU's memory as long as the launch may be called."""


def packed_launch(toolchain: Toolchain, launch: Launch, arrays: Mapping[str, Any], gpu: NativeGpu) -> PackedLaunch:
    """Compile the kernel by `toolchain` and pack what it is launched with. Raises what `Toolchain.bind` does."""
    native, kept = uploaded(launch, arrays, gpu, toolchain.tensor_maps_by_value)
    given = tuple(_device_argument(argument) for argument in native)
    compiled = toolchain.compile(launch.kernel, given, gpu.arch)
    return PackedLaunch(compiled, tuple(_by_value(word) for word in compiled.pack(given)), kept)


def _device_argument(argument: Any) -> Any:
    """A native argument as toolchains compile for it and pack it: an array of CuPy's is a pointer."""
    import numpy as np

    if not hasattr(argument, "data") or isinstance(argument, np.generic):
        return argument
    name = argument.dtype.name
    # CuPy has no bfloat16, and nothing else is 16 bits without a sign.
    return DevicePointer(int(argument.data.ptr), tuple(argument.shape), "bfloat16" if name == "uint16" else name)


def _by_value(word: bytes) -> np.generic:
    """The bytes of a parameter as CuPy passes them on."""
    import numpy as np

    scalar: np.generic = np.frombuffer(word, f"u{len(word)}")[0] if len(word) in (1, 2, 4, 8) else np.void(word)
    return scalar


def limited(compiled: CompiledKernel, ptx: str | None = None) -> str:
    """The PTX, or `ptx` in its place, with the limit of registers that the author gave a compiler.

    The driver is not told otherwise. `.maxnreg` stands between an entry's parameters and its body (PTX ISA,
    performance-tuning directives).
    """
    from harness.ptx.statements import entry_text

    ptx = compiled.ptx if ptx is None else ptx
    if compiled.max_registers is None:
        return ptx
    entry = entry_text(ptx, compiled.entry)
    assert entry is not None
    return f"{ptx[: entry.end]}\n.maxnreg {compiled.max_registers}\n{ptx[entry.end :]}"
