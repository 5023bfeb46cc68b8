"""Changes modules of CuPy when they are imported."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.device.cupy_runtime.driver_calls import DriverCalls
from harness.device.cupy_runtime.jitify_headers import find_headers
from harness.device.driver import status
from harness.device.driver.module_changes import Change, change_when_imported
from harness.device.driver.process import Driver

_RUNTIME = "cupy_backends.cuda.api.runtime"
_WITHOUT_DRIVER = frozenset({
    "runtimeGetVersion", "_getLocalRuntimeVersion", "_getCUDAMajorVersion", "make_Extent", "make_Pos",
    "make_PitchedPtr",
})  # fmt: skip
"""Functions of the runtime that do not need a driver."""
_CUB_ATTEMPTS = ("cub_reduction", "cub_scan", "cub_histogram")
"""Functions after whose result None CuPy runs a kernel of its own."""
_CUB_CALLS = ("device_reduce", "device_segmented_reduce", "device_scan", "device_histogram")


def _replace_functions(module: Any, functions: Mapping[str, Callable[..., Any]]) -> None:
    """Replace functions of a compiled module, for callers in Python and in other compiled modules."""
    from harness.device.cupy_runtime.cython_function import cython_functions, is_supported, signature_of

    signatures = {name: signature_of(capsule) for name, capsule in module.__pyx_capi__.items()}
    compiled = {
        name: (function, signatures[name])
        for name, function in functions.items()
        if is_supported(signatures.get(name, ""))
    }
    module.__pyx_capi__.update(cython_functions(compiled))
    for name, function in functions.items():
        if hasattr(module, name):
            setattr(module, name, function)


_NAMES = {
    status.OUT_OF_MEMORY: "MemoryAllocation",
    status.NOT_INITIALIZED: "InitializationError",
    status.DEINITIALIZED: "CudartUnloading",
    status.INVALID_CONTEXT: "DeviceUninitialized",
    status.INVALID_HANDLE: "InvalidResourceHandle",
    status.NOT_FOUND: "SymbolNotFound",
    status.LAUNCH_FAILED: "LaunchFailure",
}
"""Names that the runtime does not derive from the driver's, without `cudaError`."""


def error_text(code: int) -> str:
    """Name and description, such as `cudaErrorInvalidValue: invalid argument`."""
    name, description = status.DESCRIPTIONS.get(code, ("CUDA_ERROR_UNKNOWN", "unrecognized error code"))
    words = name.removeprefix("CUDA_ERROR_").split("_")
    return f"cudaError{_NAMES.get(code) or ''.join(word.capitalize() for word in words)}: {description}"


def refused_function(call: DriverCalls, name: str, library: str = "") -> Callable[..., Any]:
    """A function that prints and counts its call, and raises an error with its name.

    `library` is the one whose machine code it runs on a GPU; without it, it is a function of NVIDIA's runtime.
    """

    def function(*arguments: Any, **named: Any) -> Any:
        error = call.refuse(name)
        if not library:
            raise error
        raise RuntimeError(
            f"{name} runs machine code of {library}, which cannot be emulated; copy the arrays to the host with "
            "cupy.asnumpy, and use NumPy or SciPy"
        ) from error

    return function


def _replace_runtime(module: Any, call: DriverCalls) -> None:
    """Replace all functions that call NVIDIA's runtime. Those that are not implemented raise an error."""
    from harness.device.cupy_runtime.runtime_functions import runtime_functions

    def initialize(self: Any, status: int) -> None:
        self.status = status
        RuntimeError.__init__(self, error_text(status))

    module.CUDARuntimeError.__init__ = initialize  # the text was the runtime's
    call.error = module.CUDARuntimeError
    functions = runtime_functions(call, module.PointerAttributes)
    names = {name for name, value in vars(module).items() if callable(value) and not isinstance(value, type)}
    for name in (names | set(module.__pyx_capi__)) - _WITHOUT_DRIVER - set(functions):
        functions[name] = refused_function(call, f"cuda{name[0].upper()}{name[1:]}")
    _replace_functions(module, functions)


def _replace_cub(module: ModuleType, call: DriverCalls) -> None:
    """Let CuPy run its own kernels instead of CUB's."""
    attempts: dict[str, Callable[..., Any]] = {name: lambda *_, **__: None for name in _CUB_ATTEMPTS}
    calls = {name: refused_function(call, f"cupy.cuda.cub.{name}", "CUB") for name in _CUB_CALLS}
    _replace_functions(module, attempts | calls)


def _replace_generator(module: ModuleType, driver: Driver) -> None:
    """Let `cupy.random.Generator` draw with NumPy."""
    from harness.device.cupy_runtime.libraries import random_generator
    from harness.device.cupy_runtime.libraries.library_memory import LibraryMemory

    vars(module).update(random_generator.functions(LibraryMemory(driver)))


def _compile_to_ptx(module: Any) -> None:
    """Let `nvcc` produce PTX, as NVRTC does under `CUPY_COMPILE_WITH_PTX`, and NVRTC source lines."""
    compile_with_nvcc, compile_with_nvrtc = module.compile_using_nvcc, module._compile_using_nvrtc_no_warning

    def compile_using_nvrtc(source: str, options: tuple[str, ...] = (), *arguments: Any, **named: Any) -> Any:
        return compile_with_nvrtc(source, (*options, "-lineinfo"), *arguments, **named)

    def compile_using_nvcc(*arguments: Any, **named: Any) -> bytes:
        if not named.get("separate_compilation"):
            named["code_type"] = "ptx"
        return bytes(compile_with_nvcc(*arguments, **named))

    module.compile_using_nvcc = compile_using_nvcc
    module._compile_using_nvrtc_no_warning = compile_using_nvrtc


class _EndOfPreparationError(Exception):
    """Ends the preparation of Jitify before its first program."""


def _find_headers_for_jitify(module: Any) -> None:
    """Give Jitify the headers of a program, which it would find one by one with a compilation for each.

    Its first program, which fills a cache on disk, is left out.
    """
    initialize, compile_program = module._init_module, module.jitify

    def initialize_without_program() -> None:
        from cupy._core import core

        def end(_: tuple[str, ...]) -> None:
            raise _EndOfPreparationError

        assemble, core.assemble_cupy_compiler_options = core.assemble_cupy_compiler_options, end
        try:
            with warnings.catch_warnings(), contextlib.suppress(_EndOfPreparationError):
                warnings.filterwarnings("ignore", "Jitify is performing a one-time only warm-up")
                initialize()
        finally:
            core.assemble_cupy_compiler_options = assemble

    def compile_with_headers(source: str, options: tuple[str, ...]) -> Any:
        directories = [Path(option[2:]) for option in options if option.startswith("-I")]
        module._add_sources(find_headers(source.encode(), directories))
        return compile_program(source, options)

    module._init_module = initialize_without_program
    module.jitify = compile_with_headers


STAND_INS = {
    "cupy.cuda.cufft": ("", "cuFFT"),
    "cupy.cuda.thrust": ("thrust", "Thrust"),
    "cupy_backends.cuda.libs.cublas": ("cublas", "cuBLAS"),
    "cupy_backends.cuda.libs.curand": ("curand", "cuRAND"),
    "cupy_backends.cuda.libs.cusolver": ("", "cuSOLVER"),
    "cupy_backends.cuda.libs.cusparse": ("", "cuSPARSE"),
}
"""CuPy's modules: the module in `libraries` that computes with NumPy, if there is one, and the library."""


def _current_stream() -> int:
    import cupy

    return int(cupy.cuda.get_current_stream().ptr)


class StandInModule(ModuleType):
    """A module that is filled when it is used first. Functions that it lacks raise an error when they are called."""

    def __init__(self, name: str, call: DriverCalls) -> None:
        super().__init__(name)
        self._call = call
        self._source, self._library = STAND_INS[name]

    def __getattr__(self, name: str) -> Any:
        if name == "__pyx_capi__":
            raise ImportError(f"{self.__name__} calls machine code of {self._library}, which cannot be emulated")
        if name.startswith("__"):
            raise AttributeError(name)
        if self._source:
            from harness.device.cupy_runtime.libraries.library_memory import LibraryMemory

            library = importlib.import_module(f"harness.device.cupy_runtime.libraries.{self._source}")
            vars(self).update(library.functions(LibraryMemory(self._call.driver, self._library, _current_stream)))
            self._source = ""
            return getattr(self, name)
        return refused_function(self._call, f"{self.__name__}.{name}", self._library)


def emulate_cupy(driver: Driver) -> None:
    """Let CuPy run on the emulated driver when it is imported. It compiles its kernels to PTX, and uses no CUB.

    Has no effect if CuPy has been imported before.
    """
    if _RUNTIME in sys.modules:
        return
    os.environ["CUPY_COMPILE_WITH_PTX"] = "1"
    os.environ.setdefault("CUPY_ACCELERATORS", "")
    call = DriverCalls(driver)
    stand_ins = {name: StandInModule(name, call) for name in STAND_INS}
    sys.modules.update(stand_ins)

    def add_stand_ins(package: ModuleType) -> None:
        for name, module in stand_ins.items():
            parent, _, last = name.rpartition(".")
            if parent == package.__name__:
                setattr(package, last, module)

    changes: dict[str, Change] = {
        _RUNTIME: lambda module: _replace_runtime(module, call),
        "cupy_backends.cuda.libs": add_stand_ins,
        "cupy.cuda": add_stand_ins,
        "cupy.cuda.compiler": _compile_to_ptx,
        "cupy.cuda.cub": lambda module: _replace_cub(module, call),
        "cupy.cuda.jitify": _find_headers_for_jitify,
        "cupy.random._generator_api": lambda module: _replace_generator(module, driver),
    }
    change_when_imported(changes)
