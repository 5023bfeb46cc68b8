"""Modules and libraries: loading PTX, finding kernels and variables."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.compilers import CompiledKernel, compile_module
from harness.device.device import Device
from harness.device.driver import status
from harness.device.driver.function_table import driver_function, read_text, write_int, write_pointer
from harness.device.driver.images import ptx_of, register_limit
from harness.device.driver.jit_options import JitOptions
from harness.device.driver.process import Driver
from harness.device.driver.status import DriverError
from harness.device.kernel import Kernel
from harness.device.module import Module
from harness.ptx.acceptance import require_loadable, require_shared_arrays_fit
from harness.ptx.statements import has_line_table, with_line_table

_NO_OPTIONS = JitOptions()
_MOST_NAMES = 5
"""Maximum names in a message."""


@dataclass(eq=False)
class LoadedModule:
    """A module or library with a handle. Handles of kernels are created once."""

    module: Module
    functions: dict[str, int] = field(default_factory=dict)


@dataclass(eq=False)
class Function:
    """A kernel of a loaded module."""

    owner: LoadedModule
    kernel: Kernel
    attributes: dict[int, int] = field(default_factory=dict)
    """Attributes that the program has set, by CUfunction_attribute."""

    @property
    def compiled(self) -> CompiledKernel:
        """Its PTX and parameters."""
        return self.kernel.compiled_for()


def _load(driver: Driver, handle: int, ptx: str, options: JitOptions = _NO_OPTIONS) -> None:
    driver.context()
    with options.logging_errors():
        module = _module(driver.device, ptx)
    write_pointer(handle, driver.new_handle(LoadedModule(module)))


_PART = re.compile(r"(\d+)")


def readable_name(entry: str) -> str:
    """The qualified name in a mangled name, without types: `__main__.add` for `_ZN8__main__3addB2v1...`.

    A name that is not mangled is returned as it is. Numba encodes characters such as `<` as `_3c`.
    """
    nested = entry.startswith("_ZN")
    if not entry.startswith("_Z"):
        return entry
    at, parts = 3 if nested else 2, []
    while (match := _PART.match(entry, at)) and len(entry) >= match.end() + int(match[1]):
        end = match.end() + int(match[1])
        parts.append(re.sub(r"_3c|_3e", lambda code: {"_3c": "<", "_3e": ">"}[code[0]], entry[match.end() : end]))
        at = end
        if not nested:
            break
    return ".".join(parts) or entry


def _module(device: Device, ptx: str) -> Module:
    """Load a module. Its kernels go by readable names. Raises `CompileError` if the text is not valid."""
    require_loadable(ptx)
    require_shared_arrays_fit(ptx)
    if not has_line_table(ptx):
        ptx = with_line_table(ptx, "module.ptx", 1)
    kernels = compile_module(ptx, device.arch) if ".entry" in ptx else {}
    limit = register_limit(ptx)
    named = {entry: replace(k, name=readable_name(entry), max_registers=limit) for entry, k in kernels.items()}
    module = Module(device, ptx, named)
    _ = module.variables  # reads the whole text
    return module


@driver_function("cuModuleLoadData", "pp")
@driver_function("cuModuleLoadFatBinary", "pp")
@driver_function("cuModuleLoadDataEx", "ppupp")
def load(driver: Driver, handle: int, image: int, count: int = 0, options: int = 0, values: int = 0) -> None:
    """Load a module from memory, which may be a fat binary, with options."""
    _load(driver, handle, ptx_of(image), JitOptions.read(count, options, values))


@driver_function("cuModuleLoad", "pp")
def load_file(driver: Driver, handle: int, path: int) -> None:
    """Load a module from a file."""
    _load(driver, handle, file_image(read_text(path)))


def file_image(path: str) -> str:
    """The PTX in a file. Raises `DriverError` if there is no such file, or no PTX in it."""
    try:
        content = ctypes.create_string_buffer(Path(path).read_bytes())
    except OSError as error:
        raise DriverError(status.FILE_NOT_FOUND, str(error)) from error
    return ptx_of(ctypes.addressof(content))


@driver_function("cuLibraryLoadData", "ppppuppu")
def load_library(
    driver: Driver,
    handle: int,
    image: int,
    options: int,
    values: int,
    count: int,
    *library_options: int,
) -> None:
    """Load a library from memory."""
    _load(driver, handle, ptx_of(image), JitOptions.read(count, options, values))


@driver_function("cuLibraryLoadFromFile", "ppppuppu")
def load_library_file(
    driver: Driver,
    handle: int,
    path: int,
    options: int,
    values: int,
    count: int,
    *library_options: int,
) -> None:
    """Load a library from a file."""
    _load(driver, handle, file_image(read_text(path)), JitOptions.read(count, options, values))


@driver_function("cuModuleUnload", "p")
@driver_function("cuLibraryUnload", "p")
def unload(driver: Driver, handle: int) -> None:
    """Unload a module or library."""
    loaded = driver.remove_handle(handle, LoadedModule)
    for function in loaded.functions.values():
        driver.remove_handle(function, Function)


@driver_function("cuModuleGetLoadingMode", "p")
def loading_mode(driver: Driver, mode: int) -> None:
    """Whether modules are loaded eagerly or lazily."""
    write_int(mode, 2)  # lazily


def _function(driver: Driver, loaded: LoadedModule, name: str) -> int:
    if name not in loaded.module.kernels:
        raise DriverError(status.NOT_FOUND, f"the module has no kernel {name}; it has {_some(loaded.module.kernels)}")
    if name not in loaded.functions:
        loaded.functions[name] = driver.new_handle(Function(loaded, loaded.module[name]))
    return loaded.functions[name]


@driver_function("cuModuleGetFunction", "ppp")
@driver_function("cuLibraryGetKernel", "ppp")
def get_function(driver: Driver, function: int, module: int, name: int) -> None:
    """The kernel with a name."""
    write_pointer(function, _function(driver, driver.of_handle(module, LoadedModule), read_text(name)))


@driver_function("cuModuleGetFunctionCount", "pp")
@driver_function("cuLibraryGetKernelCount", "pp")
def function_count(driver: Driver, count: int, module: int) -> None:
    """The number of kernels."""
    write_int(count, len(driver.of_handle(module, LoadedModule).module.kernels))


@driver_function("cuModuleEnumerateFunctions", "pup")
@driver_function("cuLibraryEnumerateKernels", "pup")
def enumerate_functions(driver: Driver, functions: int, count: int, module: int) -> None:
    """The first kernels."""
    loaded = driver.of_handle(module, LoadedModule)
    for index, name in enumerate(list(loaded.module.kernels)[:count]):
        write_pointer(functions + 8 * index, _function(driver, loaded, name))


@driver_function("cuLibraryGetModule", "pp")
def library_module(driver: Driver, module: int, library: int) -> None:
    """The module of a library in the current context, which has the same handle here."""
    driver.of_handle(library, LoadedModule)
    write_pointer(module, library)


@driver_function("cuKernelGetFunction", "pp")
def kernel_function(driver: Driver, function: int, kernel: int) -> None:
    """The function of a kernel in the current context, which has the same handle here."""
    driver.of_handle(kernel, Function)
    write_pointer(function, kernel)


@driver_function("cuModuleGetGlobal_v2", "pppp")
@driver_function("cuLibraryGetGlobal", "pppp")
@driver_function("cuLibraryGetManaged", "pppp")
def get_variable(driver: Driver, address: int, size: int, module: int, name: int) -> None:
    """Address and size of a variable."""
    loaded, wanted = driver.of_handle(module, LoadedModule).module, read_text(name)
    if wanted not in loaded.variables:
        raise DriverError(
            status.NOT_FOUND, f"the module has no variable {wanted}; it has {_some(tuple(loaded.variables))}"
        )
    found = loaded.variable(wanted)
    write_pointer(address, found.address)
    write_pointer(size, found.nbytes)


def _some(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:_MOST_NAMES]) or "none"
    return f"{shown}, ..." if len(names) > _MOST_NAMES else shown
