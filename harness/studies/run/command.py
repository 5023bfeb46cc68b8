"""`run`: one variant on the user's own arrays."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.model.operation import Operation, operation_named
from harness.model.problem import IN_OUT, OPTIONAL_OUTPUT, BaseProblem
from harness.options.command import Command, add_fields_of, argument
from harness.options.device import add_device
from harness.options.exit_status import FAILED, PASSED, add_allow_undecided
from harness.options.output import add_report, check_output, publish
from harness.options.problem import add_fields, add_operation
from harness.options.request import StudyRequest
from harness.options.variants import add_plugins
from harness.support.file_replacement import replace_files
from harness.support.override import override

if TYPE_CHECKING:
    from harness.text.study_result import StudyResult


@dataclass(frozen=True, kw_only=True)
class ArraysRequest(StudyRequest):
    """The variant to run, and what its arrays have to be."""

    variant: str = argument("VARIANT", "name of the variant, as shown by 'list'")
    dtype: str | None = None
    """What the arrays have to be; None: what they are."""
    allow_undecided: bool = False


@dataclass(frozen=True, kw_only=True)
class RunRequest(ArraysRequest):
    """The files of the arrays, too."""

    out: Path
    """Where the main output goes."""
    files: Mapping[str, Path]
    """The files of inputs and of other outputs, by the name of the tensor's option."""

    @classmethod
    @override
    def further_fields(cls, arguments: argparse.Namespace, problem: BaseProblem | None) -> dict[str, Any]:
        files = {name: path for name, path in vars(arguments).items() if isinstance(path, Path)}
        return {**super().further_fields(arguments, problem), "files": files}


def run_one(request: RunRequest) -> int:
    """Run `run`; the exit status."""
    from harness.studies.run.run import run_arrays
    from harness.studies.run.user_arrays import load_arrays

    operation = operation_named(request.problem.operation)
    plain = operation.problem()
    optional = [tensor.name for tensor in plain.with_role(OPTIONAL_OUTPUT)]
    main, *others = (tensor.name for tensor in plain.outputs)
    targets = {main: request.out, **{name: request.files.get(_option_of(plain, name)) for name in (*others, *optional)}}
    files = {tensor.name: request.files[tensor.name.lower()] for tensor in plain.inputs}
    further = {name: request.files[name.lower()] for name in operation.further_inputs if name.lower() in request.files}
    written, read = (*targets.values(), request.report.output), (*files.values(), *further.values())
    check_output(*written, inputs=(*read, *request.selection.plugin))
    arrays = load_arrays(operation, files, request.dtype, further)
    wanted = [name for name in optional if targets[name] is not None]
    shown, outputs = run_arrays(request, arrays, request.problem.fields(operation.settings), wanted)
    replace_files({path: arrays.npy(outputs[name]) for name, path in targets.items() if path and name in outputs})
    publish(request.report, shown.report)
    return PASSED if shown.passed else FAILED


def _option_of(plain: BaseProblem, output: str) -> str:
    """The name under which `RunRequest.files` has the file of an output that is not the main one.

    That of an output that is also an input is `v_out` for V, since `v` is the input's.
    """
    return f"{output.lower()}_out" if plain.tensor(output).role == IN_OUT else output.lower()


def add_options(parser: argparse.ArgumentParser, operation: Operation) -> None:
    """What can be said to `run`: a file for each input, for the main output, and for each other one."""
    add_fields_of(RunRequest, parser, "variant")
    add_operation(parser)
    _add_files(parser, operation)
    _add_settings(parser, operation)
    add_report(parser)


def add_options_of_call(parser: argparse.ArgumentParser, operation: Operation) -> None:
    """What can be said to `harness.run` besides arrays."""
    add_fields_of(ArraysRequest, parser, "variant")
    add_operation(parser)
    _add_settings(parser, operation)


def _add_settings(parser: argparse.ArgumentParser, operation: Operation) -> None:
    main, *others = (tensor.name for tensor in operation.problem().outputs)
    parser.add_argument(
        "--dtype",
        help="required dtype of the arrays, such as float32 (default: their own). bfloat16 arrays, including "
        f"{', '.join((main, *others))}, are stored as uint16 arrays that hold the same bits",
    )
    add_fields(parser, operation, list(operation.settings))
    add_plugins(parser)
    add_device(parser)
    add_allow_undecided(parser)


def _add_files(parser: argparse.ArgumentParser, operation: Operation) -> None:
    from harness.model.cases.regime import NUMPY_DTYPES
    from harness.studies.run.user_arrays import axes_that_may_lack, option_of_array

    plain = operation.problem()
    lacking = axes_that_may_lack(plain.inputs)
    for tensor in plain.inputs:
        kept = {1: "last axis", 2: "last two axes"}.get(len(tensor.axes) - lacking, "")
        shorter = f", or its {kept} alone" if lacking else ""
        whole = "" if tensor.dtype in NUMPY_DTYPES else f", {tensor.dtype}"
        help = f"{tensor.name}: ({', '.join(tensor.axes)}){shorter}{whole}"
        parser.add_argument(option_of_array(tensor.name), type=Path, required=True, metavar="FILE.npy", help=help)
    for name, further in operation.further_inputs.items():
        (tensor,) = (t for t in operation.problem.from_fields({further.field: further.value}).inputs if t.name == name)
        usual = f"; --{further.field} alone uses the default ones" if further.follows else ""
        has_choice = further.value_of is not None and len(tensor.axes) > 1
        usual += "; an extent of 1 stands for all of an axis" if has_choice else ""
        help = f"{name}: ({', '.join(tensor.axes)}), in {tensor.dtype}{usual}"
        parser.add_argument(option_of_array(name), type=Path, metavar="FILE.npy", help=help)
    main, *others = (tensor.name for tensor in plain.outputs)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.npy", help=f"file for the output {main}")
    for name in others:
        option = option_of_array(_option_of(plain, name))
        parser.add_argument(option, type=Path, metavar="FILE.npy", help=f"file for the output {name}")
    for tensor in plain.with_role(OPTIONAL_OUTPUT):
        help = f"file for {tensor.name}, in {tensor.dtype}; not all variants store it"
        parser.add_argument(option_of_array(tensor.name), type=Path, metavar="FILE.npy", help=help)


def _call(variant: Any, plugin: Any, options: Mapping[str, Any]) -> StudyResult[Any]:
    from harness.studies.run.call import run_call

    return run_call(variant, plugin, options)


COMMAND = Command(
    "run",
    "run one variant on your own arrays",
    add_options,
    RunRequest,
    run_one,
    call=_call,
    examples=(
        ("fa2-cupy --q q.npy --k k.npy --v v.npy --out o.npy", "Check a variant on your own arrays, and store O."),
        (
            "fa2-cupy --q q.npy --k k.npy --v v.npy --causal --out o.npy --lse lse.npy",
            "Apply a causal mask, and store the log-sum-exp too.",
        ),
        (
            "my-idea --plugin my_idea.py --q q.npy --k k.npy --v v.npy --out o.npy --dtype bfloat16",
            "Run your variant on arrays of bfloat16.",
        ),
    ),
)
