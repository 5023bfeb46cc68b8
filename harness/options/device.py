"""Options that choose the device and what to record, and the executors that they create."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.execution.run_settings import CacheModel, RunSettings
from harness.model.problem import BaseProblem
from harness.options.command import WHOLE_NUMBER, add_fields_of, option
from harness.support.errors import UsageError
from harness.support.gpu_data_sheets import GPUS

if TYPE_CHECKING:
    from harness.emulator.executor import EmulatorExecutor
    from harness.execution.protocol import Device, Executor, Sanitizer
    from harness.options.machine import Machine
    from harness.support.gpu_data_sheets import Gpu
    from harness.support.progress import Progress

NO_GPU = "--device gpu: CuPy finds no GPU on this machine; --device emulator needs none"

LARGEST_L2_BYTES = 1 << 30
"""Upper limit of the modelled L2 cache in bytes, about ten times that of real GPUs."""


@dataclass(frozen=True)
class CacheOptions:
    """Options of the cache model."""

    gpu: str | None = option(
        "NAME",
        f"GPU whose caches and roofline are modelled: {', '.join(GPUS)} (default: the one that is present, else h200, "
        "or b200 with --arch sm_100a)",
    )
    l2_bytes: int | None = option("N", "model an L2 cache of N bytes instead of the GPU's own size", type=WHOLE_NUMBER)
    cache_control: str | None = option(
        None, "all: each launch begins with empty caches, as in Nsight Compute; none: L2 stays warm between the "
        "launches of a plan (default: none, or all if the counts are compared with a GPU's counters)",
        choices=("all", "none"),
    )  # fmt: skip

    @property
    def are_special(self) -> bool:
        """Whether the L2 size or the cache control is set."""
        return self.l2_bytes is not None or self.cache_control is not None


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add --device, --count and the options of the emulator."""
    group = add_device_choice(parser.add_argument_group("device"), "auto: the GPU if there is one, else the emulator")
    group.add_argument(
        "--count",
        choices=("auto", "always", "never"),
        help="on a GPU: whether bytes are also counted, on the emulator (auto: only if this takes no more than a few "
        "seconds). On the emulator, they are always counted",
    )
    add_emulator(group)


def add_device_choice(group: argparse._ActionsContainer, help: str) -> argparse._ActionsContainer:
    """Add --device. Returns the group."""
    group.add_argument("--device", choices=("auto", "gpu", "emulator"), help=help)
    return group


def add_step_limit(group: argparse._ActionsContainer) -> None:
    """Add --step-limit."""
    group.add_argument(
        "--step-limit",
        type=WHOLE_NUMBER,
        metavar="N",
        help="emulator: number of instructions after which a warp is stopped",
    )


def add_arch(group: argparse._ActionsContainer, default: str = RunSettings.arch) -> None:
    """Add --arch. `default` is the default in words."""
    group.add_argument(
        "--arch",
        metavar="ARCH",
        help=f"emulator: architecture for which kernels are compiled, such as sm_90a or sm_100a (default: {default})",
    )


def add_emulator(group: argparse._ActionsContainer, arch: str = RunSettings.arch) -> None:
    """Add --arch, --step-limit, --seed and --threads. `arch` is the default of --arch in words."""
    add_arch(group, arch)
    add_step_limit(group)
    group.add_argument(
        "--seed",
        type=WHOLE_NUMBER,
        metavar="S",
        help=f"selects inputs and the order of warps (default: {RunSettings.seed})",
    )
    group.add_argument(
        "--threads", type=WHOLE_NUMBER, metavar="N", help="emulator: number of CPU threads (default: one per core)"
    )


def add_sanitizer(
    parser: argparse.ArgumentParser, on_gpu: str = "On a GPU: run compute-sanitizer, if it is installed"
) -> None:
    """Add --sanitize."""
    group = parser.add_argument_group("sanitizer")
    group.add_argument(
        "--sanitize",
        action="store_true",
        help="find races, uninitialised reads, unwritten outputs, stores into inputs, undefined shuffles and results "
        f"that depend on the schedule; a finding fails the variant. {on_gpu}",
    )


def add_caches(parser: argparse.ArgumentParser) -> None:
    """Add --gpu, --l2-bytes and --cache-control."""
    add_fields_of(CacheOptions, parser.add_argument_group("GPU"), "gpu", "l2_bytes", "cache_control")


def arch_of(settings: RunSettings) -> str:
    """Return the architecture to compile for: that of the GPU if there is one, else that of the emulator.

    Raises `UsageError` if --arch is given and is not an architecture, or is not that of the GPU.
    """
    from harness.gpu.executor import GpuExecutor

    require_arch(settings)
    if settings.device == "emulator" or not GpuExecutor.available():
        return settings.arch
    return GpuExecutor().device.arch


def require_arch(settings: RunSettings) -> None:
    """Raise `UsageError` if --arch is no architecture, or is given for a GPU, which has its own."""
    from harness.ptx.targets import Target

    target = Target.named(settings.arch)
    if target is None:
        raise UsageError(f"--arch is {settings.arch!r}; it has to look like sm_90 or sm_100a")
    if target.number < 50:
        raise UsageError(f"--arch is {settings.arch!r}; the compilers support sm_50 and newer")
    if settings.device == "gpu" and settings.arch != RunSettings.arch:
        raise UsageError(f"--arch {settings.arch} is the emulator's; a GPU has its own. Use --device emulator")


def modelled_arch(settings: RunSettings, gpu: Gpu) -> str:
    """Return the architecture to compile for where `gpu` is modelled. Raises `UsageError` if --arch names another."""
    require_arch(settings)
    if settings.arch == RunSettings.arch:
        return gpu.multiprocessor.arch
    if settings.arch.rstrip("af") != gpu.multiprocessor.arch:
        raise UsageError(f"--arch is {settings.arch}, and --gpu {gpu.name} is {gpu.multiprocessor.arch}; leave out one")
    return settings.arch


def gpu_of(options: CacheOptions, settings: RunSettings) -> Gpu:
    """Return the GPU named by --gpu, else the available one, else the usual one of the architecture.

    Raises `UsageError` if it is unknown.
    """
    from harness.gpu.executor import GpuExecutor
    from harness.support.gpu_data_sheets import gpu, gpu_like, usual_gpu

    if options.gpu is not None:
        return gpu(options.gpu)
    here = None
    if settings.device != "emulator" and GpuExecutor.available():
        here = gpu_like(GpuExecutor().device.name)
    return here or usual_gpu(settings.arch)


def cache_model(options: CacheOptions, settings: RunSettings) -> CacheModel:
    """Return the cache model for the emulator. Raises `UsageError` for an unknown GPU or an invalid size."""
    require_positive("l2-bytes", options.l2_bytes)
    if options.l2_bytes is not None and options.l2_bytes > LARGEST_L2_BYTES:
        raise UsageError(f"--l2-bytes is {options.l2_bytes}; it has to be at most {LARGEST_L2_BYTES}")
    # Nsight Compute empties the caches before each launch. To be comparable with its counters, the model does the same.
    control = options.cache_control or ("all" if settings.device == "gpu" else "none")
    return CacheModel(gpu_of(options, settings), options.l2_bytes, flushed=control == "all")


def executor_of(settings: RunSettings, progress: Progress) -> Executor:
    """Return the executor for the device in `settings`. Raises `UsageError` if the GPU is not available."""
    if settings.device == "emulator":
        return emulator_of(settings, progress)
    from harness.gpu.executor import GpuExecutor
    from harness.options.machine import isolated_gpu

    require_gpu(settings)
    return isolated_gpu() if GpuExecutor.available() else emulator_of(settings, progress)


def require_gpu(settings: RunSettings) -> None:
    """Raise `UsageError` if --device gpu is given and no GPU is available."""
    from harness.gpu.executor import GpuExecutor

    require_arch(settings)
    if settings.device == "gpu" and not GpuExecutor.available():
        raise UsageError(NO_GPU)


def sanitizing(settings: RunSettings, plugins: Sequence[Path], progress: Progress) -> tuple[Executor, Sanitizer | None]:
    """Return the executor for the variants, and the sanitizer if `settings` request one, otherwise None."""
    executor = executor_of(settings, progress)
    if not settings.sanitize:
        return executor, None
    from harness.emulator.plan_sanitizer import EmulatorSanitizer
    from harness.gpu.compute_sanitizer import ComputeSanitizer

    if executor.device.is_gpu:
        return executor, ComputeSanitizer(settings.regime, settings.seed, plugins)
    sanitizer = EmulatorSanitizer(settings, progress.part)
    return sanitizer.executor, sanitizer


def machine_of(settings: RunSettings) -> Machine:
    """Return the device that `executor_of` would choose, for worker processes. Raises `UsageError`."""
    from harness.gpu.executor import GpuExecutor
    from harness.options.machine import WORKER, Machine

    require_positive("step-limit", settings.step_limit)
    require_gpu(settings)
    if settings.device != "emulator" and GpuExecutor.available():
        if settings.sanitize:
            raise UsageError("fuzz --sanitize runs on the emulator; add --device emulator")
        return Machine(replace(WORKER, device="gpu"))
    return Machine(replace(WORKER, arch=settings.arch, step_limit=settings.step_limit, sanitize=settings.sanitize))


def visible_gpus(machine: Machine) -> list[str]:
    """Return the GPUs to distribute over local workers, as in CUDA_VISIBLE_DEVICES; empty for the emulator."""
    return gpus_of_this_machine() if machine.kind == "gpu" else []


def gpus_of_this_machine() -> list[str]:
    """Return the GPUs of this machine, as in CUDA_VISIBLE_DEVICES."""
    from harness.gpu.context import gpu_count

    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return given.split(",") if given else [str(number) for number in range(gpu_count())]


def machine_line(machine: Machine) -> str:
    """Describe the device that worker processes use."""
    from harness.text.tables import device_line

    return device_line(machine.executor().device)


def emulator_of(
    settings: RunSettings, progress: Progress, *, bank_conflicts: bool = False, instructions: bool = False
) -> EmulatorExecutor:
    """Return an emulator with these settings. Raises `UsageError` for a step limit or a number of threads below 1."""
    from harness.emulator.executor import EmulatorExecutor
    from harness.emulator.instruments import Instruments

    require_arch(replace(settings, device="emulator"))
    require_positive("step-limit", settings.step_limit)
    require_positive("threads", settings.threads)
    instruments = Instruments(bank_conflicts=bank_conflicts, instructions=instructions)
    return EmulatorExecutor(settings, progress=progress.part, instruments=instruments)


def require_positive(option: str, value: int | None) -> None:
    """Raise `UsageError` if the value of this option is below 1."""
    if value is not None and value < 1:
        raise UsageError(f"--{option} is {value}; it has to be at least 1")


def counter_of(settings: RunSettings, problem: BaseProblem, device: Device, progress: Progress) -> Executor | None:
    """Return an emulator that counts bytes in addition to a run on a GPU, or None if `--count` does not require one."""
    from harness.execution.comparison import counts_beside

    if not counts_beside(settings.count, problem, device):
        return None
    return emulator_of(replace(settings, arch=device.arch), progress)
