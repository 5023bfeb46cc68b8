"""The driver's linker. Its output is PTX, which `cuModuleLoadData` and `cuLibraryLoadData` take."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.device.driver import status
from harness.device.driver.function_table import driver_function, read_text, write_pointer
from harness.device.driver.functions.modules import file_image
from harness.device.driver.images import ptx_of, with_register_limit
from harness.device.driver.jit_options import JitOptions
from harness.device.driver.process import Driver
from harness.device.driver.status import DriverError
from harness.ptx.acceptance import require_loadable
from harness.ptx.linking import LinkError, linked

_PTX = 1


@dataclass(eq=False)
class LinkState:
    """Modules that will be linked."""

    options: JitOptions
    texts: list[str] = field(default_factory=list)
    output: Any = None

    def add(self, ptx: str) -> None:
        """Add a module. Raises `CompileError` if no driver loads it."""
        with self.options.logging_errors():
            require_loadable(ptx)
        self.texts.append(ptx)


@driver_function("cuLinkCreate_v2", "uppp")
def create(driver: Driver, count: int, options: int, values: int, state: int) -> None:
    """Begin to link. The caller keeps the values of its options until the linker is destroyed."""
    driver.context()
    write_pointer(state, driver.new_handle(LinkState(JitOptions.read(count, options, values))))


def _is_device_runtime(name: str) -> bool:
    """Whether a file is NVIDIA's device runtime, whose functions for `grid.sync()` the emulator has itself."""
    return Path(name).name == "libcudadevrt.a"


def _require_ptx(kind: int, name: str) -> None:
    if kind not in (0, _PTX):
        kinds = {2: "a fat binary", 3: "an object file", 4: "a library", 5: "LTO-IR"}
        raise DriverError(
            status.NOT_SUPPORTED, f"the program links {kinds.get(kind, 'a file')} ({name}); only PTX can be linked"
        )


@driver_function("cuLinkAddData_v2", "pipppupp")
def add_data(
    driver: Driver, state: int, kind: int, data: int, size: int, name: int, count: int, options: int, values: int
) -> None:
    """Add a module in memory."""
    given = read_text(name) if name else "unnamed"
    if _is_device_runtime(given):
        return
    _require_ptx(kind, given)
    content = ctypes.create_string_buffer(ctypes.string_at(data, size))
    driver.of_handle(state, LinkState).add(ptx_of(ctypes.addressof(content)))


@driver_function("cuLinkAddFile_v2", "pipupp")
def add_file(driver: Driver, state: int, kind: int, path: int, count: int, options: int, values: int) -> None:
    """Add a module in a file."""
    if _is_device_runtime(read_text(path)):
        return
    _require_ptx(kind, read_text(path))
    driver.of_handle(state, LinkState).add(file_image(read_text(path)))


@driver_function("cuLinkComplete", "ppp")
def complete(driver: Driver, state: int, image: int, size: int) -> int:
    """Link. The output belongs to the linker until it is destroyed."""
    linking = driver.of_handle(state, LinkState)
    if not linking.texts:
        return status.INVALID_VALUE
    with linking.options.logging_errors():
        try:
            text = with_register_limit(linked(linking.texts), linking.options.max_registers)
        except LinkError as error:
            raise DriverError(status.INVALID_PTX, str(error)) from None
    linking.output = ctypes.create_string_buffer(text.encode())
    write_pointer(image, ctypes.addressof(linking.output))
    write_pointer(size, len(linking.output))
    return status.SUCCESS


@driver_function("cuLinkDestroy", "p")
def destroy(driver: Driver, state: int) -> None:
    """End the linker."""
    driver.remove_handle(state, LinkState)
