"""The texts of the CUDA runtime's errors, whose numbers are the driver's."""

from __future__ import annotations

from harness.device.driver import status

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
