"""Settings of a run: everything that is chosen for it apart from its problem."""

from __future__ import annotations

from dataclasses import dataclass

from harness.support.cores import usable_cores
from harness.support.gpu_data_sheets import Gpu


@dataclass(frozen=True)
class CacheModel:
    """The caches that the emulator models behind its sector counts."""

    gpu: Gpu
    """The GPU whose caches they are."""
    l2_bytes: int | None = None
    """Size of L2; None: the GPU's own."""
    flushed: bool = False
    """Whether every launch begins with empty caches, as under a profiler; else L2 stays warm during a plan."""


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    noise: float = 0.005
    """A contender is known well enough when half its interval is below this fraction of its median."""
    most_seconds: float = 3.0
    """GPU time of cold runs per contender, at most."""
    most_samples: int = 500
    """And so many of them."""
    sustained_seconds: float = 1.0
    """How long the sustained runs go on; 0 leaves them out."""
    seed: int = 0
    """Random seed of the order within the rounds."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Everything that is chosen for a run apart from its problem, with the defaults that all commands share."""

    device: str = "auto"
    """`gpu`, `emulator`, or `auto`: the GPU if there is one, else the emulator."""
    arch: str = "sm_90"
    """The architecture that the emulator compiles kernels for."""
    regime: str = "normal"
    """How inputs are drawn: the name of one of the operation's regimes."""
    seed: int = 0
    """Random seed of the inputs. On the emulator, seeds other than 0 also permute the turns of a block's warps."""
    step_limit: int | None = None
    """Instructions that a warp of the emulator may run; None: as many as `step_limits` derives from the problem."""
    threads: int | None = None
    """CPU threads of the emulator; None: one per core. Results do not depend on it."""
    sanitize: bool = False
    """Whether the sanitizer looks for races, uninitialized reads and the like."""
    count: str = "auto"
    """When the emulator counts bytes: `always`, `never`, or `auto`, where that takes seconds."""
    caches: CacheModel | None = None
    """The caches that the emulator models; None: none."""
    effort: Effort = Effort()
    """How long a GPU is timed."""

    @property
    def cores(self) -> int:
        """The number of CPU threads that the emulator uses."""
        return self.threads or usable_cores()


DEFAULT_SETTINGS = RunSettings()
