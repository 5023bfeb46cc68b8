"""Defines the settings of a run: everything that a user chooses apart from its problem."""

from __future__ import annotations

from dataclasses import dataclass

from harness.support.cores import usable_cores
from harness.support.gpu_data_sheets import Gpu


@dataclass(frozen=True)
class CacheModel:
    """The caches that the emulator models behind its sector counts."""

    gpu: Gpu
    """The GPU whose caches are modelled."""
    l2_bytes: int | None = None
    """Size of L2 in bytes. None for the size of the GPU's L2."""
    flushed: bool = False
    """Whether caches are emptied before every launch, as under a profiler. Otherwise L2 stays warm during a plan."""


@dataclass(frozen=True)
class Effort:
    """How long a GPU benchmark measures."""

    noise: float = 0.005
    """Sampling stops when half a contender's confidence interval is below this fraction of its median."""
    most_seconds: float = 3.0
    """Maximum GPU time of cold runs per contender, in seconds."""
    most_samples: int = 500
    """Maximum number of cold runs per contender."""
    sustained_seconds: float = 1.0
    """Duration of the sustained runs in seconds; 0 for none."""
    seed: int = 0
    """Random seed of the order of contenders within each round."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Everything that a user chooses for a run apart from its problem, with the defaults of all commands."""

    device: str = "auto"
    """`gpu`, `emulator`, or `auto`: the GPU if there is one, else the emulator."""
    arch: str = "sm_90"
    """The architecture that the emulator compiles kernels for."""
    regime: str = "normal"
    """Name of the operation's regime from which inputs are drawn, such as `normal`."""
    seed: int = 0
    """Random seed of the inputs. On the emulator, seeds other than 0 also permute the turns of a block's warps."""
    step_limit: int | None = None
    """Maximum instructions per warp on the emulator. None for the limit that `step_limits` derives from the problem."""
    threads: int | None = None
    """CPU threads of the emulator. None for one per core. Results do not depend on it."""
    sanitize: bool = False
    """Whether the sanitizer looks for races, uninitialized reads and the like."""
    count: str = "auto"
    """When the emulator counts bytes: `always`, `never`, or `auto`, if that takes no more than a few seconds."""
    caches: CacheModel | None = None
    """The caches that the emulator models. None for no cache model."""
    effort: Effort = Effort()
    """How long a GPU benchmark measures."""

    @property
    def cores(self) -> int:
        """Number of CPU threads that the emulator uses."""
        return self.threads or usable_cores()


DEFAULT_SETTINGS = RunSettings()
