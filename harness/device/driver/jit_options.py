"""Options of the functions that compile PTX (`CUjit_option`): the limit of registers, and the caller's error log."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass

from harness.device.driver.function_table import read_int, write_pointer
from harness.device.driver.status import DriverError
from harness.support.errors import SandboxError

_MAX_REGISTERS, _ERROR_LOG, _ERROR_LOG_BYTES = 0, 5, 6


@dataclass(frozen=True)
class JitOptions:
    """Options with their values. The others have no effect here."""

    max_registers: int | None = None
    log: int = 0
    """Address of the caller's buffer for errors; 0 if there is none."""
    log_bytes: int = 0
    """Address of the buffer's size in bytes, which becomes the number of bytes written."""

    @classmethod
    def read(cls, count: int, options: int, values: int) -> JitOptions:
        """Read two arrays of the caller: options of 4 bytes, and values of 8."""
        places = {read_int(options + 4 * index): values + 8 * index for index in range(count)}
        registers, log = places.get(_MAX_REGISTERS), places.get(_ERROR_LOG)
        return cls(
            None if registers is None else read_int(registers),
            0 if log is None else ctypes.c_uint64.from_address(log).value,
            places.get(_ERROR_LOG_BYTES, 0),
        )

    @contextlib.contextmanager
    def logging_errors(self) -> Iterator[None]:
        """Write what is raised to the caller's log as well."""
        try:
            yield
        except (DriverError, SandboxError) as error:
            if self.log and self.log_bytes:
                room = ctypes.c_uint32.from_address(self.log_bytes).value
                text = f"{error}\n".encode()[: max(room - 1, 0)] + b"\0"
                ctypes.memmove(self.log, text, min(len(text), room))
                write_pointer(self.log_bytes, min(len(text), room))
            raise
