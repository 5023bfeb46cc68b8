"""Contexts and the primary context of the device."""

from __future__ import annotations

from harness.device.driver import status
from harness.device.driver.attributes import DRIVER_VERSION
from harness.device.driver.function_table import driver_function, write_int, write_pointer
from harness.device.driver.functions.devices import require_device
from harness.device.driver.process import Context, Driver
from harness.device.driver.status import DriverError
from harness.support.memory_units import KIB, MIB

_LIMITS = {0: KIB, 1: 8 * MIB, 2: 8 * MIB, 4: 2048, 5: 64, 6: 0, 7: 0}
"""Initial values by CUlimit: stack, printf buffer, heap, pending launches, L2 fetches, persisting L2, ..."""


def current_context(driver: Driver) -> Context | None:
    """The context on top of this thread's stack, whether or not a kernel has failed in it."""
    if not driver.initialized:
        raise DriverError(status.NOT_INITIALIZED)
    return driver.contexts[-1] if driver.contexts else None


def _context(driver: Driver, handle: int) -> Context:
    try:
        return driver.of_handle(handle, Context)
    except DriverError:
        raise DriverError(status.INVALID_CONTEXT) from None


def _create(driver: Driver, context: int, flags: int, device: int) -> None:
    require_device(driver, device)
    created = Context(0, flags)
    created.handle = driver.new_handle(created)
    driver.contexts.append(created)
    write_pointer(context, created.handle)


@driver_function("cuCtxCreate_v2", "pui")
def create(driver: Driver, context: int, flags: int, device: int) -> None:
    """Create a context, and make it current."""
    _create(driver, context, flags, device)


@driver_function("cuCtxCreate_v3", "ppiui", since=11040)
def create_with_affinity(driver: Driver, context: int, affinity: int, count: int, flags: int, device: int) -> None:
    """Create a context with execution affinity, which has no effect here."""
    _create(driver, context, flags, device)


@driver_function("cuCtxCreate_v4", "ppui", since=12050)
def create_with_parameters(driver: Driver, context: int, parameters: int, flags: int, device: int) -> None:
    """Create a context with parameters, which have no effect here."""
    _create(driver, context, flags, device)


@driver_function("cuCtxDestroy_v2", "p")
def destroy(driver: Driver, handle: int) -> int:
    """Destroy a context."""
    context = _context(driver, handle)
    if context.primary:
        return status.INVALID_CONTEXT
    driver.remove_handle(handle, Context)
    if context in driver.contexts:
        driver.contexts.remove(context)
    return status.SUCCESS


@driver_function("cuCtxPushCurrent_v2", "p")
def push(driver: Driver, handle: int) -> None:
    """Push a context onto the stack."""
    driver.contexts.append(_context(driver, handle))


@driver_function("cuCtxPopCurrent_v2", "p")
def pop(driver: Driver, context: int) -> int:
    """Pop the current context from the stack."""
    if current_context(driver) is None:
        return status.INVALID_CONTEXT
    write_pointer(context, driver.contexts.pop().handle)
    return status.SUCCESS


@driver_function("cuCtxSetCurrent", "p")
def set_current(driver: Driver, handle: int) -> None:
    """Replace the context on top of the stack; with null, remove it."""
    if current_context(driver) is not None:
        driver.contexts.pop()
    if handle:
        driver.contexts.append(_context(driver, handle))


@driver_function("cuCtxGetCurrent", "p")
def get_current(driver: Driver, context: int) -> None:
    """The current context; null if there is none."""
    current = current_context(driver)
    write_pointer(context, 0 if current is None else current.handle)


@driver_function("cuCtxGetDevice", "p")
def context_device(driver: Driver, device: int) -> int:
    """The device of the current context."""
    if current_context(driver) is None:
        return status.INVALID_CONTEXT
    write_int(device, 0)
    return status.SUCCESS


@driver_function("cuCtxGetDevice_v2", "pp", since=13000)
def device_of_context(driver: Driver, device: int, handle: int) -> None:
    """The device of a context; of the current one for null."""
    write_int(device, 0)


@driver_function("cuCtxGetFlags", "p")
def get_flags(driver: Driver, flags: int) -> None:
    """The flags of the current context."""
    write_int(flags, driver.context().flags)


@driver_function("cuCtxSetFlags", "u")
def set_flags(driver: Driver, flags: int) -> None:
    """Change the flags of the current context."""
    driver.context().flags = flags


@driver_function("cuCtxGetId", "pp")
def context_id(driver: Driver, handle: int, identifier: int) -> None:
    """A number that identifies a context."""
    write_pointer(identifier, (_context(driver, handle) if handle else driver.context()).handle)


@driver_function("cuCtxGetApiVersion", "pp")
def api_version(driver: Driver, handle: int, version: int) -> None:
    """The version of CUDA for which a context was created."""
    write_int(version, DRIVER_VERSION)


@driver_function("cuCtxSynchronize")
def synchronize(driver: Driver) -> None:
    """Wait for all work, which is complete."""
    driver.context()
    driver.device.synchronize()


@driver_function("cuCtxGetLimit", "pi")
def get_limit(driver: Driver, value: int, limit: int) -> int:
    """A limit of the context."""
    driver.context()
    if limit not in _LIMITS:
        return status.UNSUPPORTED_LIMIT
    write_pointer(value, _LIMITS[limit])
    return status.SUCCESS


@driver_function("cuCtxSetLimit", "ip")
def set_limit(driver: Driver, limit: int, value: int) -> int:
    """Change a limit of the context. Limits have no effect on the emulated GPU."""
    driver.context()
    return status.SUCCESS if limit in _LIMITS else status.UNSUPPORTED_LIMIT


@driver_function("cuCtxGetStreamPriorityRange", "pp")
def priority_range(driver: Driver, least: int, greatest: int) -> None:
    """The priorities that streams can have."""
    write_int(least, 0)
    write_int(greatest, -5)


@driver_function("cuCtxGetCacheConfig", "p")
@driver_function("cuCtxGetSharedMemConfig", "p")
def get_configuration(driver: Driver, configuration: int) -> None:
    """The preferred configuration of caches, or of banks."""
    driver.context()
    write_int(configuration, 0)


@driver_function("cuCtxSetCacheConfig", "i")
@driver_function("cuCtxSetSharedMemConfig", "i")
def set_configuration(driver: Driver, configuration: int) -> None:
    """Change the preferred configuration, which has no effect on Hopper."""
    driver.context()


@driver_function("cuDevicePrimaryCtxRetain", "pi")
def retain_primary(driver: Driver, context: int, device: int) -> None:
    """Activate the primary context."""
    require_device(driver, device)
    driver.primary_users += 1
    write_pointer(context, driver.primary.handle)


@driver_function("cuDevicePrimaryCtxRelease_v2", "i")
def release_primary(driver: Driver, device: int) -> int:
    """Release the primary context."""
    require_device(driver, device)
    if not driver.primary_users:
        return status.INVALID_CONTEXT
    driver.primary_users -= 1
    return status.SUCCESS


@driver_function("cuDevicePrimaryCtxReset_v2", "i")
def reset_primary(driver: Driver, device: int) -> None:
    """Reset the primary context: free all memory, and clear the failure of a kernel."""
    require_device(driver, device)
    driver.device.memory.close()
    driver.primary.failed = status.SUCCESS
    driver.primary_users = 0


@driver_function("cuDevicePrimaryCtxSetFlags_v2", "iu")
def set_primary_flags(driver: Driver, device: int, flags: int) -> None:
    """Set the flags of the primary context."""
    require_device(driver, device)
    driver.primary.flags = flags


@driver_function("cuDevicePrimaryCtxGetState", "ipp")
def primary_state(driver: Driver, device: int, flags: int, active: int) -> None:
    """The flags of the primary context, and whether it is active."""
    require_device(driver, device)
    write_int(flags, driver.primary.flags)
    write_int(active, int(driver.primary_users > 0))
