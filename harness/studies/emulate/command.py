"""`emulate`: run a CUDA program on the emulated GPU."""

from __future__ import annotations

import argparse
import runpy
import sys
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from harness.model.operation import Operation
from harness.options.command import WHOLE_NUMBER, Command, add_fields_of, flag, option
from harness.options.device import require_positive
from harness.options.exit_status import FAILED, PASSED
from harness.options.request import Request
from harness.support.errors import UsageError
from harness.support.gpu_data_sheets import GPUS


@dataclass(frozen=True, kw_only=True)
class EmulateRequest(Request):
    """The program, and what to report about it."""

    gpu: str = option("NAME", f"the GPU that the program sees: {', '.join(GPUS)} (default: h100)", default="h100")
    sanitize: bool = flag("report races and reads of unwritten memory at the end; kernels take longer")
    seed: int = option(
        "N", "with --sanitize: selects the order of blocks and warps (default: ascending)", type=WHOLE_NUMBER, default=0
    )
    step_limit: int | None = option(
        "N", "instructions that a warp may run before it is stopped (default: 1,000,000,000)", type=WHOLE_NUMBER
    )
    summary: bool = flag("show at the end what each kernel moved, by buffer and source line")
    module: list[str] | None = None
    program: list[str] | None = None


def run_emulate(request: EmulateRequest) -> int:
    """Run the program; its own exit status, or 1 if it would be 0 and the sanitizer found something."""
    words = request.module or request.program
    if not words:
        raise UsageError("emulate needs a program: emulate SCRIPT.py [ARGS], or emulate -m MODULE [ARGS]")
    if not request.module and not Path(words[0]).is_file():
        raise UsageError(f"there is no file {words[0]}; name the script, or use -m MODULE")
    from harness.studies.emulate.emulation import emulate

    require_positive("step-limit", request.step_limit)
    emulation = emulate(gpu=request.gpu, sanitize=request.sanitize, seed=request.seed, step_limit=request.step_limit)
    status = run_program(words, is_module=bool(request.module))
    if sys.stdout is not None:
        sys.stdout.flush()
    if request.summary:
        print(f"\n{emulation.summary()}", file=sys.stderr)
    if request.sanitize:
        print(emulation.findings_report(), file=sys.stderr)
        if status == PASSED and emulation.findings:
            return FAILED
    return status


def run_program(words: list[str], *, is_module: bool) -> int:
    """Run a script or module as `__main__` with its arguments, as `python` would. Returns its exit status."""
    name, *arguments = words
    sys.argv = [name, *arguments]
    try:
        if is_module:
            sys.path.insert(0, "")
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(name).resolve().parent))
            runpy.run_path(name, run_name="__main__")
        threading._shutdown()  # type: ignore[attr-defined]  # waits for the program's threads
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except Exception as error:
        traceback.print_exception(type(error), error, _of_program(error.__traceback__))
        return 1
    return PASSED


def _of_program(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that begins in the program, without this module and `runpy`."""
    own = {__file__, runpy.__file__, "<frozen runpy>"}
    here = trace
    while here is not None and here.tb_frame.f_code.co_filename in own:
        here = here.tb_next
    return here or trace


def add_options(parser: argparse.ArgumentParser, operation: Operation) -> None:
    """Add the options of `emulate`."""
    add_fields_of(EmulateRequest, parser, "gpu", "sanitize", "seed", "step_limit", "summary")
    parser.add_argument(
        "-m", dest="module", metavar="MODULE [ARGS]", nargs=argparse.REMAINDER, help="run a module as a program"
    )
    parser.add_argument(
        "program", metavar="SCRIPT [ARGS]", nargs=argparse.REMAINDER, help="the script, and its own arguments"
    )


COMMAND = Command(
    "emulate",
    "run a CUDA program (numba.cuda or CuPy) on the emulated GPU",
    add_options,
    EmulateRequest,
    run_emulate,
    examples=(
        ("saxpy.py", "Run a script that uses numba.cuda or CuPy on this machine without a GPU."),
        ("--summary saxpy.py 4096", "Show in addition what each kernel moved; 4096 is the script's own argument."),
        ("--sanitize -m pytest tests", "Run tests, and report the races of their kernels."),
    ),
)
