"""Describes the GPU on which a toolchain launches kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from harness.model.plan import Launch
from harness.support.errors import PlanError


@dataclass(frozen=True)
class NativeGpu:
    """The GPU of this process, as passed to toolchains."""

    cupy: Any
    """The imported CuPy package."""
    stream: Any
    """The CuPy stream that orders all work."""
    name: str
    """Name of the device, for messages."""
    arch: str
    """Architecture, such as `sm_90`."""
    modules: dict[bytes, Any] = field(default_factory=dict, compare=False, repr=False)
    """Modules that toolchains have loaded, by their PTX or cubin."""

    @contextmanager
    def shared_memory_refusal_explained(self, launch: Launch, static_bytes: int) -> Iterator[None]:
        """Context for requesting dynamic shared memory. A refusal by CUDA becomes a `PlanError` with the sizes."""
        try:
            yield
        except Exception as error:
            most_bytes = self.cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]
            raise PlanError(
                f"kernel {launch.kernel_name} asks for {launch.shared_bytes:,} bytes of dynamic shared memory besides "
                f"{static_bytes:,} static ones; {self.name} has {most_bytes:,} per block ({error})"
            ) from error
