"""The state of the emulated driver in this process, and how its functions get in front of the libraries."""

from __future__ import annotations

import atexit
import ctypes
import itertools
import os
import re
import sys
import threading
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from harness.device.device import Device
from harness.device.driver import status
from harness.device.driver.function_table import FUNCTIONS, DriverFunction, versions_of
from harness.device.driver.launch_log import LaunchLog
from harness.device.driver.pending_exceptions import is_called_by_destructors, preserving_exceptions
from harness.device.driver.shared_library import SharedLibrary
from harness.device.driver.status import DriverError
from harness.support.errors import CompileError, SandboxError, UnsupportedPtxVersion, UsageError
from harness.support.gpu_data_sheets import gpu

T = TypeVar("T")

DRIVER_SONAME = "libcuda.so.1"
LINKER_SONAME = "libnvJitLink.so.12"
"""The linker of CUDA 12, which only produces machine code. Where it exports nothing, numba-cuda and `cuda.core` use the
driver's own linker, which is given PTX."""
_SPARE_FUNCTIONS = 1024
"""Number of stubs for functions that are not implemented. Each is given a name when a library asks for it."""
_STATUS = (
    (UsageError, status.INVALID_VALUE), (UnsupportedPtxVersion, status.UNSUPPORTED_PTX_VERSION),
    (CompileError, status.INVALID_PTX), (SandboxError, status.NOT_SUPPORTED),
)  # fmt: skip
"""What a function returns for errors of the emulated GPU."""
_FIRST_HANDLE, _HANDLE_STEP = 0x10_0000, 0x10


@dataclass(eq=False)
class Context:
    """A CUDA context. All contexts share the memory of the device."""

    handle: int
    flags: int = 0
    primary: bool = False
    failed: int = status.SUCCESS
    """Status of the kernel that failed, which all later calls return, too."""


@dataclass
class _ThreadState(threading.local):
    stack: list[Context] = field(default_factory=list)
    """The current contexts of a thread; the last is the one on top."""


class Driver:
    """What the programs of this process have created through the driver."""

    def __init__(self, gpu: str, *, sanitize: bool = False, seed: int = 0, step_limit: int | None = None) -> None:
        self.device = Device(gpu=gpu, sanitize=sanitize, lenient=True, seed=seed, step_limit=step_limit)
        self.gpu = self.device.gpu
        self.options = self.gpu, sanitize, seed, step_limit
        self.log = LaunchLog()
        self.library: SharedLibrary | None = None
        self.initialized = False
        self.primary = Context(_FIRST_HANDLE, primary=True)
        self.primary_users = 0
        self.unsupported: Counter[str] = Counter()
        """Functions that programs called and that are not implemented, with the number of calls."""
        self.default_pool: Any = None
        self.current_pool: Any = None
        """Pools of memory: the device's own, and the one of `cuMemAllocAsync`."""
        self.pooled: dict[int, tuple[Any, int]] = {}
        """Pool and size of the memory that was allocated from a pool, by address."""
        self.working_stream: Any = None
        """The stream whose work was executed last."""
        self.recordings: list[Any] = []
        """How streams record graphs now."""
        self.texts: dict[int, Any] = {}
        """C strings that callers got, by status and kind."""
        self.objects: dict[int, Any] = {}
        """Texture and surface objects by handle, which is the address of their record."""
        self._handles: dict[int, Any] = {self.primary.handle: self.primary}
        self._numbers = itertools.count(_FIRST_HANDLE + _HANDLE_STEP, _HANDLE_STEP)
        self._names: defaultdict[str, itertools.count[int]] = defaultdict(lambda: itertools.count(1))
        self._threads = _ThreadState()
        self._spare = itertools.count()
        self._spare_symbols: dict[str, str] = {}

    # Handles ----------------------------------------------------------------------------------------------------------

    def new_handle(self, thing: object) -> int:
        """A handle for an object, different from all earlier ones."""
        handle = next(self._numbers)
        self._handles[handle] = thing
        return handle

    def of_handle(self, handle: int, kind: type[T]) -> T:
        """The object of this type with a handle. Raises `DriverError` if there is none."""
        found = self._handles.get(handle)
        if not isinstance(found, kind):
            raise DriverError(status.INVALID_HANDLE, f"there is no {_in_words(kind)} with the handle {handle:#x}")
        return found

    def handle_of(self, thing: object) -> int:
        """The handle of an object."""
        return next(handle for handle, each in self._handles.items() if each is thing)

    def find(self, kind: type[T], fits: Callable[[T], bool]) -> T:
        """The first object of this type that fits. Raises `DriverError` if there is none."""
        for each in self._handles.values():
            if isinstance(each, kind) and fits(each):
                return each
        raise DriverError(status.INVALID_HANDLE)

    def remove_handle(self, handle: int, kind: type[T]) -> T:
        """Forget a handle, and return its object. Raises `DriverError` if there is none of this type."""
        found = self.of_handle(handle, kind)
        del self._handles[handle]
        return found

    def new_name(self, kind: str = "allocation") -> str:
        """A name for an allocation, by which counts and messages call it."""
        return f"{kind}-{next(self._names[kind])}"

    # Contexts ---------------------------------------------------------------------------------------------------------

    @property
    def contexts(self) -> list[Context]:
        """The stack of this thread's contexts."""
        return self._threads.stack

    def context(self) -> Context:
        """The current context. Raises `DriverError` if there is none, or if a kernel has failed in it."""
        if not self.initialized:
            raise DriverError(status.NOT_INITIALIZED)
        if not self._threads.stack:
            raise DriverError(status.INVALID_CONTEXT)
        current = self._threads.stack[-1]
        if current.failed:
            raise DriverError(current.failed)
        return current

    # Functions --------------------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Load the library under the driver's name, and connect it to `FUNCTIONS`.

        Raises `SandboxError` if this process has already loaded a driver.
        """
        if _is_loaded(DRIVER_SONAME):
            raise SandboxError(
                "this process has already loaded libcuda.so.1; start the emulated driver before importing a library "
                "that uses CUDA"
            )
        spare = [f"emulated_spare_{number}" for number in range(_SPARE_FUNCTIONS)]
        self.library = SharedLibrary(DRIVER_SONAME, [*FUNCTIONS, *spare], status.DEINITIALIZED)
        callbacks = {name: function.prototype(self._entry_point(function)) for name, function in FUNCTIONS.items()}
        guarded = {name: callback for name, callback in callbacks.items() if is_called_by_destructors(name)}
        addresses = preserving_exceptions(guarded, {name: FUNCTIONS[name].parameters for name in guarded})
        for name, callback in callbacks.items():
            self.library.connect(name, callback, addresses.get(name))
        # Objects that outlive the interpreter still call the driver. This runs after what programs register.
        atexit.register(self.library.disconnect)
        if not _is_loaded(LINKER_SONAME):
            self._linker = SharedLibrary(LINKER_SONAME, [], status.NOT_SUPPORTED)

    def _entry_point(self, function: DriverFunction) -> Any:
        def enter(*arguments: Any) -> int:
            try:
                return self.call(function, *arguments)
            except BaseException:
                traceback.print_exc()
                return status.UNKNOWN

        return enter

    def call(self, function: DriverFunction, *arguments: Any) -> int:
        """Call a function. Returns its status, and prints why the call failed."""
        try:
            return function.call(self, *arguments) or status.SUCCESS
        except DriverError as error:
            if error.explanation:
                explain(error.explanation)
            return error.status
        except SandboxError as error:
            explain(str(error))
            return next(status for kind, status in _STATUS if isinstance(error, kind))

    def address_of(self, name: str, version: int) -> int | None:
        """The address of a function for a caller compiled for this version of CUDA.

        A function that is not implemented has an address, too: it returns `NOT_SUPPORTED`, and is counted.
        """
        assert self.library is not None
        for function in versions_of(name):
            if function.since <= version:
                return self.library.address(function.symbol)
        if name not in self._spare_symbols:
            number = next(self._spare)
            if number >= _SPARE_FUNCTIONS:
                return None
            self._spare_symbols[name] = symbol = f"emulated_spare_{number}"
            self.library.connect(symbol, ctypes.CFUNCTYPE(ctypes.c_int)(lambda: self.refuse(name)))
        return self.library.address(self._spare_symbols[name])

    def refuse(self, name: str) -> int:
        """Record a call of a function that is not implemented. Returns the status."""
        if name not in self.unsupported:
            explain(f"the program called {name}, which the emulated driver does not support")
        self.unsupported[name] += 1
        return status.NOT_SUPPORTED


def explain(message: str) -> None:
    """Print why a call failed, since a program only gets a status."""
    if sys.stderr is not None:
        print(f"emulated GPU: {message}", file=sys.stderr, flush=True)


def _in_words(kind: type) -> str:
    """The name of a class in words: `LoadedModule` is a loaded module."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.__name__).lower()


def _is_loaded(soname: str) -> bool:
    try:
        ctypes.CDLL(soname, mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    return True


_installed: Driver | None = None


def install(gpu_name: str = "h100", *, sanitize: bool = False, seed: int = 0, step_limit: int | None = None) -> Driver:
    """Put the emulated driver in front of the libraries of this process, for the rest of its life.

    Call it before any library that uses CUDA is imported. A second call returns the same driver. Raises `SandboxError`
    if a driver is already loaded, or if the options differ from those of the first call.
    """
    global _installed
    if _installed is None:
        from harness.device.driver import functions

        functions.load()
        driver = Driver(gpu_name, sanitize=sanitize, seed=seed, step_limit=step_limit)
        driver.install()
        _installed = driver
    elif _installed.options != (gpu(gpu_name), sanitize, seed, step_limit):
        raise SandboxError("the emulated driver of this process already runs with other options")
    return _installed
