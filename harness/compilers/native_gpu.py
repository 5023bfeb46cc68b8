"""What a toolchain is given to bind a launch on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from harness.model.plan import Launch
from harness.support.errors import PlanError


@dataclass(frozen=True)
class NativeGpu:
    """The GPU of this process, as toolchains see it."""

    cupy: Any
    """The package, loaded."""
    stream: Any
    """CuPy's stream that everything is ordered by."""
    name: str
    """The device's name, for messages."""
    arch: str
    """What it runs, such as `sm_90`."""
    modules: dict[bytes, Any] = field(default_factory=dict, compare=False, repr=False)
    """What a toolchain has loaded itself, by its PTX or cubin."""

    @contextmanager
    def shared_memory_refusal_explained(self, launch: Launch, static_bytes: int) -> Iterator[None]:
        """Around asking CUDA for a launch's dynamic shared memory: its refusal becomes a `PlanError` with the sizes."""
        try:
            yield
        except Exception as error:
            most_bytes = self.cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]
            raise PlanError(
                f"kernel {launch.kernel_name} asks for {launch.shared_bytes:,} bytes of dynamic shared memory besides "
                f"{static_bytes:,} static ones; {self.name} has {most_bytes:,} per block ({error})"
            ) from error
