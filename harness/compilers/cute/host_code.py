"""Runs the host code that CuTe DSL compiles, and records the launches that it makes instead of launching anything.

`cute.compile(function, ..., options="--enable-tvm-ffi")` compiles the Python function around a kernel to machine code
for the CPU: it checks its arguments, builds tensor maps, chooses the grid and calls CUDA through a few functions of
CuTe's runtime library. Here this code is loaded with functions of our own in their place. What it passes to the launch
is therefore exactly what a GPU would get, for every kernel that CuTe compiles, and neither CuTe nor a GPU is needed.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.compilers.cute import tvm_ffi
from harness.model.plan import require_cluster
from harness.support.errors import CompileError, PlanError, SandboxError
from harness.support.gpu_data_sheets import GPUS, Gpu

ENTRY = "launch"
"""Name under which host code is exported; its function is `__tvm_ffi_` and this."""
_MACHINE_CODE = "kernels_binary"
"""Symbol of the fat binary in the host code."""
_ALREADY_THERE = "_GLOBAL_OFFSET_TABLE_"
_FAILED = 1
_CLUSTER = 4
"""`cudaLaunchAttributeClusterDimension`."""

_LOCK = threading.RLock()


@dataclass(frozen=True)
class HostLaunch:
    """A launch that the host code made."""

    entry: str
    """The kernel's name in the PTX."""
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    cluster: tuple[int, ...] | None
    parameters: tuple[bytes, ...]
    """The bytes of each parameter."""


@dataclass
class _Recorder:
    """What the functions of the runtime library are to record."""

    parameter_bytes: Mapping[str, tuple[int, ...]]
    attributes: Mapping[int, int]
    """Values of `cudaDeviceAttr`."""
    launches: list[HostLaunch] = field(default_factory=list)
    error: str = ""


class _LaunchConfiguration(ctypes.Structure):
    """`cudaLaunchConfig_t`."""

    _fields_ = [
        ("grid", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3), ("shared_bytes", ctypes.c_uint64),
        ("stream", ctypes.c_uint64), ("attributes", ctypes.c_uint64), ("count", ctypes.c_uint32),
    ]  # fmt: skip


class _LaunchAttribute(ctypes.Structure):
    """`cudaLaunchAttribute`, whose value has 64 bytes."""

    _fields_ = [("kind", ctypes.c_uint32), ("unused", ctypes.c_uint32), ("value", ctypes.c_uint32 * 16)]


_FILE_HEADER = struct.Struct("<40xQ10xHHH")
_SECTION = struct.Struct("<II2QQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMBOL_TABLE = 2


@dataclass(frozen=True)
class Symbol:
    """A symbol of an object file."""

    name: str
    data: bytes | None
    """The bytes that it names; None if the file does not define it."""


def symbols(image: bytes) -> tuple[Symbol, ...]:
    """Return the named symbols of an object file (System V ABI, "Symbol Table").

    Raises `CompileError` if it is no 64-bit little-endian ELF file.
    """
    if not image.startswith(b"\x7fELF\x02\x01"):
        raise CompileError("the host code of a CuTe function is no 64-bit ELF object file")
    at, each, count, _ = _FILE_HEADER.unpack_from(image)
    sections = [_SECTION.unpack_from(image, at + each * number) for number in range(count)]
    found = []
    for _, kind, _, _, begin, size, link, _, _, _ in sections:
        if kind == _SYMBOL_TABLE:
            names = sections[link][4]
            found += [_symbol(image, sections, names, begin + at) for at in range(0, size, _SYMBOL.size)]
    return tuple(symbol for symbol in found if symbol.name)


def _symbol(image: bytes, sections: list[tuple[int, ...]], names: int, at: int) -> Symbol:
    name, _, _, section, value, size = _SYMBOL.unpack_from(image, at)
    text = image[names + name : image.index(b"\0", names + name)].decode()
    if section == 0:
        return Symbol(text, None)
    begin = sections[section][4] + value if section < len(sections) else 0
    return Symbol(text, image[begin : begin + size])


class HostCode:
    """The host code of a compiled function, loaded into this process. Raises `CompileError` if it cannot be loaded."""

    def __init__(self, image: bytes, parameter_bytes: Mapping[str, tuple[int, ...]], gpu: Gpu = GPUS["h200"]) -> None:
        """`image` is the object file; `parameter_bytes` has the sizes of each kernel's parameters.

        `gpu` is the GPU that the code sees when it asks for attributes of the device.
        """
        import llvmlite.binding as llvm

        self._parameter_bytes = parameter_bytes
        self._attributes = _attributes(gpu)
        needed = [each.name for each in symbols(image) if each.data is None and each.name != _ALREADY_THERE]
        with _LOCK:
            _define_runtime()
            unknown = [name for name in needed if llvm.address_of_symbol(name) is None]
            if unknown:
                raise CompileError(
                    f"the host code of a CuTe function calls {', '.join(unknown)}, which is not supported without "
                    "CuTe's own runtime"
                )
            module = llvm.parse_assembly("")
            machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
            self._engine = llvm.create_mcjit_compiler(module, machine)
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(image))
            self._engine.finalize_object()
            self._address = self._engine.get_function_address(f"__tvm_ffi_{ENTRY}")
        if not self._address:
            raise CompileError(f"the host code of a CuTe function has no function __tvm_ffi_{ENTRY}")

    def launches(self, arguments: tuple[Any, ...]) -> tuple[HostLaunch, ...]:
        """Call the function with the arguments that `tvm_ffi.PackedArguments` takes, and return its launches.

        Raises `PlanError` with its own message if it refuses them.
        """
        global _recorder
        packed = tvm_ffi.PackedArguments(arguments)
        with _LOCK:
            _recorder = recorder = _Recorder(self._parameter_bytes, self._attributes)
            failed = tvm_ffi.call(self._address, packed)
        if failed or recorder.error:
            raise PlanError(recorder.error or "the host code of a CuTe function failed without a message")
        return tuple(recorder.launches)


def _attributes(gpu: Gpu) -> dict[int, int]:
    """`cudaDeviceAttr`: multiprocessors, compute capability, and the most shared memory of a block."""
    major, minor = divmod(int(gpu.multiprocessor.arch.removeprefix("sm_")), 10)
    shared = gpu.multiprocessor.most_shared_bytes_per_block
    return {16: gpu.multiprocessors, 75: major, 76: minor, 97: shared}


def machine_code(image: bytes) -> bytes | None:
    """Return the fat binary in host code; None if there is none."""
    return next((each.data for each in symbols(image) if each.name == _MACHINE_CODE), None)


# The runtime library --------------------------------------------------------------------------------------------------

_recorder = _Recorder({}, {})
"""Of the call that runs now; set under `_LOCK`."""
_kernels: dict[int, str] = {}
"""Names of kernels by their handles."""


def _write(place: int, value: int, size: int = 8) -> None:
    ctypes.memmove(place, value.to_bytes(size, "little"), size)


def _text(place: int) -> str:
    return ctypes.string_at(place).decode(errors="replace")


def _load_once(library: int, load: int, load_to_device: int, set_error: int) -> int:
    """`cuda_dialect_init_library_once`: the code's own two functions load its kernels, once."""
    if ctypes.c_uint64.from_address(library).value:
        return 0
    one, two = ctypes.c_int64, ctypes.c_uint64
    handle = ctypes.c_uint64(0)
    failed = ctypes.CFUNCTYPE(one, two)(load)(ctypes.addressof(handle))
    failed = failed or ctypes.CFUNCTYPE(one, two, ctypes.c_int64)(load_to_device)(ctypes.addressof(handle), 0)
    if not failed:
        _write(library, handle.value)
    return int(failed)


def _load_library(library: int, code: int) -> int:
    _write(library, code)
    return 0


def _kernel(kernel: int, library: int, name: int) -> int:
    handle = 16 * (len(_kernels) + 1)
    _kernels[handle] = _text(name)
    _write(kernel, handle)
    return 0


def _zero(place: int) -> int:
    _write(place, 0, 4)
    return 0


def _device_attribute(place: int, attribute: int) -> int:
    attribute &= 0xFFFFFFFF
    if attribute not in _recorder.attributes:
        raise SandboxError(f"the host code of a CuTe function reads device attribute {attribute}, which is unknown")
    _write(place, _recorder.attributes[attribute], 4)
    return 0


def _nothing() -> int:
    return 0


def _launch(configuration: int, kernel: int, arguments: int) -> int:
    config = _LaunchConfiguration.from_address(configuration)
    cluster = None
    for attribute in (_LaunchAttribute * config.count).from_address(config.attributes) if config.count else ():
        if attribute.kind == _CLUSTER:
            cluster = tuple(attribute.value[:3])
    entry = _kernels[kernel]
    sizes = _recorder.parameter_bytes[entry]
    places = (ctypes.c_uint64 * len(sizes)).from_address(arguments)
    parameters = tuple(ctypes.string_at(place, size) for place, size in zip(places, sizes))
    grid = tuple(config.grid)
    if cluster in ((0, 0, 0), (1, 1, 1)):
        cluster = None
    if cluster is not None:
        require_cluster(f"kernel {entry}: its", grid, cluster)
    launched = HostLaunch(entry, grid, tuple(config.block), config.shared_bytes, cluster, parameters)
    _recorder.launches.append(launched)
    return 0


def _set_error(kind: int, message: int) -> int:
    _recorder.error = _text(message)
    return 0


def _set_error_of_parts(kind: int, parts: int, count: int) -> int:
    places = (ctypes.c_uint64 * (count & 0xFFFFFFFF)).from_address(parts)
    _recorder.error = "".join(_text(place) for place in places)
    return 0


def _set_cuda_error(code: int) -> int:
    _recorder.error = _recorder.error or "the host code of a CuTe function reports an error of CUDA"
    return 0


_RUNTIME = {
    "cuda_dialect_init_library_once": (_load_once, 4),
    "cuda_dialect_unload_library_once": (_nothing, 0),
    "_cudaLibraryLoadData": (_load_library, 2),
    "_cudaLibraryGetKernel": (_kernel, 3),
    "_cudaGetDevice": (_zero, 1),
    "_cudaSetDevice": (_nothing, 0),
    "_cudaDeviceGetAttribute": (_device_attribute, 2),
    "_cuKernelGetAttribute": (_zero, 1),
    "_cudaFuncSetAttribute": (_nothing, 0),
    "_cudaKernelSetAttributeForDevice": (_nothing, 0),
    "_cudaLaunchKernelEx": (_launch, 3),
    "TVMFFIEnvGetStream": (_nothing, 0),
    "TVMFFIErrorSetRaisedFromCStr": (_set_error, 2),
    "TVMFFIErrorSetRaisedFromCStrParts": (_set_error_of_parts, 3),
    "CuteDSLRT_TVMFFISetRaisedCudaError": (_set_cuda_error, 1),
    "CuteDSLRT_TVMFFISetRaisedCudaLaunchError": (_set_cuda_error, 1),
}
"""The functions that host code calls, with how many of their first arguments they read."""


@functools.lru_cache(maxsize=1)
def _define_runtime() -> tuple[Any, ...]:
    """Make the functions above known to LLVM's loader. Returns the callbacks, which are thereby kept alive."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    callbacks = []
    for name, (function, arity) in _RUNTIME.items():
        callback = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_uint64] * arity)(_recording_errors(function))
        llvm.add_symbol(name, ctypes.cast(callback, ctypes.c_void_p).value)
        callbacks.append(callback)
    return tuple(callbacks)


def _recording_errors(function: Any) -> Any:
    """Return the function as a callback, in which an exception is an error of the call."""

    def callback(*arguments: int) -> int:
        try:
            return int(function(*arguments))
        except Exception as error:
            _recorder.error = str(error) or repr(error)
            return _FAILED

    return callback
