"""Where to run and what to record: the options of devices, and the executors that they choose."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.model.problem import BaseProblem
from harness.options.command import WHOLE_NUMBER
from harness.support.errors import UsageError
from harness.support.gpus import GPUS

if TYPE_CHECKING:
    from harness.emulator.executor import CacheModel, EmulatorExecutor
    from harness.execution.protocol import Device, Executor, Sanitizer
    from harness.options.machine import Machine
    from harness.support.gpus import Gpu
    from harness.support.progress import Progress

NO_GPU = "--device gpu: CuPy finds no GPU on this machine; --device emulator needs none"

DEFAULT_ARCH = "sm_90"
"""What kernels are compiled for where there is no GPU to ask."""


LARGEST_L2_BYTES = 1 << 30
"""Of a model; what is built has a tenth of it."""


def add_device(parser: argparse.ArgumentParser) -> None:
    """--device and --count, and the emulator's options."""
    group = parser.add_argument_group("device")
    group.add_argument(
        "--device",
        choices=("auto", "gpu", "emulator"),
        default="auto",
        help="auto: the GPU if there is one, else the emulator",
    )
    group.add_argument(
        "--count",
        choices=("auto", "always", "never"),
        default="auto",
        help="on a GPU: count bytes by running on the emulator too (auto: where that takes seconds). The emulator "
        "itself always counts",
    )
    add_emulator(group)


def add_emulator(group: argparse._ActionsContainer) -> None:
    """--step-limit, --seed, --threads."""
    group.add_argument(
        "--step-limit", type=WHOLE_NUMBER, metavar="N", help="emulator: instructions a warp may run before it stops"
    )
    group.add_argument(
        "--seed",
        type=WHOLE_NUMBER,
        default=0,
        metavar="S",
        help="same seed, same inputs and same order of warps (default: 0)",
    )
    group.add_argument(
        "--threads", type=WHOLE_NUMBER, metavar="N", help="emulator: CPU threads (default: one per core)"
    )


def add_sanitizer(
    parser: argparse.ArgumentParser, on_gpu: str = "On a GPU: by compute-sanitizer, where it is installed"
) -> None:
    """--sanitize."""
    group = parser.add_argument_group("sanitizer")
    group.add_argument(
        "--sanitize",
        action="store_true",
        help="look for races, reads of memory that nobody wrote, outputs not written, stores into inputs, undefined "
        f"shuffles and answers that depend on the schedule; a finding fails the variant. {on_gpu}",
    )


def add_caches(parser: argparse.ArgumentParser) -> None:
    """--gpu, --l2-bytes, --cache-control."""
    group = parser.add_argument_group("GPU")
    group.add_argument(
        "--gpu",
        metavar="NAME",
        help=f"whose caches, and whose roof: {', '.join(GPUS)} (default: the one that is there, else h200)",
    )
    group.add_argument("--l2-bytes", type=WHOLE_NUMBER, metavar="N", help="another size of its L2")
    group.add_argument(
        "--cache-control",
        choices=("all", "none"),
        help="all: every launch begins with empty caches, as under Nsight Compute; none: L2 stays warm from launch to "
        "launch of a plan (default: none, but all beside a GPU's own counters)",
    )


def arch_here() -> str:
    """What to compile for: the GPU that is there, else the default."""
    from harness.gpu.executor import GpuExecutor

    return GpuExecutor().device.arch if GpuExecutor.available() else DEFAULT_ARCH


def counted_arch(arguments: argparse.Namespace) -> str:
    """What to compile for where bytes are counted."""
    return DEFAULT_ARCH if arguments.device == "emulator" else arch_here()


def gpu_of(arguments: argparse.Namespace) -> Gpu:
    """The GPU that was asked for, else the one that is there, else an H200."""
    from harness.gpu.executor import GpuExecutor
    from harness.support.gpus import GPUS, gpu, gpu_like

    if arguments.gpu is not None:
        return gpu(arguments.gpu)
    here = None
    if arguments.device != "emulator" and GpuExecutor.available():
        here = gpu_like(GpuExecutor().device.name)
    return here or GPUS["h200"]


def cache_model(arguments: argparse.Namespace) -> CacheModel:
    """The caches to put behind the emulator. Raises `UsageError` for an unknown GPU or an absurd size."""
    from harness.emulator.executor import CacheModel

    require_positive(arguments, "l2_bytes")
    if arguments.l2_bytes is not None and arguments.l2_bytes > LARGEST_L2_BYTES:
        raise UsageError(f"--l2-bytes is {arguments.l2_bytes}; it has to be at most {LARGEST_L2_BYTES}")
    # Beside counters of Nsight Compute, which empties the caches before each launch, only the same can be compared.
    control = arguments.cache_control or ("all" if arguments.device == "gpu" else "none")
    return CacheModel(gpu_of(arguments), arguments.l2_bytes, flushed=control == "all")


def executor_of(arguments: argparse.Namespace, progress: Progress) -> Executor:
    """The executor that `--device` asks for. Raises `UsageError` where there is no such GPU."""
    if arguments.device == "emulator":
        return emulator_of(arguments, progress)
    from harness.gpu.executor import GpuExecutor
    from harness.options.machine import isolated_gpu

    require_gpu(arguments)
    return isolated_gpu() if GpuExecutor.available() else emulator_of(arguments, progress)


def require_gpu(arguments: argparse.Namespace) -> None:
    """Raise `UsageError` where --device gpu asks for a GPU that is not there."""
    from harness.gpu.executor import GpuExecutor

    if arguments.device == "gpu" and not GpuExecutor.available():
        raise UsageError(NO_GPU)


def sanitizing(arguments: argparse.Namespace, progress: Progress) -> tuple[Executor, Sanitizer | None]:
    """What runs the variants, and what looks for findings if it was asked for."""
    executor = executor_of(arguments, progress)
    if not arguments.sanitize:
        return executor, None
    from harness.emulator.plan_sanitizer import EmulatorSanitizer
    from harness.gpu.compute_sanitizer import ComputeSanitizer

    if executor.device.kind == "gpu":
        return executor, ComputeSanitizer(arguments.regime, arguments.seed, arguments.plugin)
    sanitizer = EmulatorSanitizer(DEFAULT_ARCH, arguments.step_limit, arguments.seed, progress.part)
    return sanitizer.executor, sanitizer


def machine_of(arguments: argparse.Namespace) -> Machine:
    """What `executor_of` would choose, for worker processes to make."""
    from harness.gpu.executor import GpuExecutor
    from harness.options.machine import Machine

    require_positive(arguments, "step_limit")
    require_gpu(arguments)
    if arguments.device != "emulator" and GpuExecutor.available():
        if arguments.sanitize:
            raise UsageError("fuzz --sanitize runs on the emulator; say --device emulator")
        return Machine("gpu")
    machine = Machine(arch=DEFAULT_ARCH, sanitize=arguments.sanitize)
    return machine if arguments.step_limit is None else replace(machine, step_limit=arguments.step_limit)


def visible_gpus(machine: Machine) -> list[str]:
    """The GPUs that local workers share, one for each, as CUDA_VISIBLE_DEVICES names them; none for the emulator."""
    return gpus_of_this_machine() if machine.kind == "gpu" else []


def gpus_of_this_machine() -> list[str]:
    """As CUDA_VISIBLE_DEVICES names them."""
    from harness.gpu.context import gpu_count

    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return given.split(",") if given else [str(number) for number in range(gpu_count())]


def machine_line(machine: Machine) -> str:
    """What to call the device that worker processes use."""
    from harness.text.tables import device_line

    return device_line(machine.executor().device)


def emulator_of(
    arguments: argparse.Namespace,
    progress: Progress,
    arch: str = DEFAULT_ARCH,
    bank_conflicts: bool = False,
    caches: CacheModel | None = None,
    instructions: bool = False,
) -> EmulatorExecutor:
    """An emulator with the options that all commands share."""
    from harness.emulator.executor import EmulatorExecutor
    from harness.emulator.instruments import Instruments

    require_positive(arguments, "step_limit", "threads")
    return EmulatorExecutor(
        arch=arch,
        step_limit=arguments.step_limit,
        threads=arguments.threads,
        seed=arguments.seed,
        progress=progress.part,
        instruments=Instruments(bank_conflicts=bank_conflicts, instructions=instructions),
        caches=caches,
    )


def require_positive(arguments: argparse.Namespace, *options: str) -> None:
    """Raise `UsageError` where one of these options is there and below 1."""
    for option in options:
        value = getattr(arguments, option)
        if value is not None and value < 1:
            raise UsageError(f"--{option.replace('_', '-')} is {value}; it has to be at least 1")


def counter_of(
    arguments: argparse.Namespace, problem: BaseProblem, device: Device, progress: Progress
) -> Executor | None:
    """An emulator to count bytes beside a GPU, where `--count` asks for it."""
    from harness.execution.comparison import counts_beside

    if not counts_beside(arguments.count, problem, device):
        return None
    return emulator_of(arguments, progress, device.arch)
