"""The user's own inputs, from .npy files or a caller in Python, the problem that they define, and outputs to match."""

from __future__ import annotations

import dataclasses
import io
import math
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.operation import Operation
from harness.model.problem import Tensor
from harness.support.errors import ProblemError, UsageError

FLOAT8 = "float8_e4m3fn"
NPY_MAGIC = b"\x93NUMPY"


class Given(NamedTuple):
    """An array of the user's."""

    place: str
    """Where it comes from, in messages: the path of a file, or `the array`."""
    array: np.ndarray


@dataclass(frozen=True)
class UserArrays:
    """The inputs with all axes, and the number of axes that the user's arrays lack."""

    operation: Operation
    inputs: dict[str, np.ndarray]
    """Inputs with all axes of the operation's tensors, bfloat16 and float8 as types of `ml_dtypes`. They are
    memory-mapped; `all_inputs` reads them."""
    dtype: str
    """float32, float16 or bfloat16."""
    axes_left_out: int
    """Number of leading axes that the user's arrays lack: a single head given as a matrix lacks two."""
    further: Mapping[str, Given] = dataclasses.field(default_factory=dict)
    """Inputs that only some problems have, if given."""

    def problem(self, said: Mapping[str, Any]) -> Any:
        """The problem that these arrays define, with the settings in `said`.

        Raises `UsageError` or `ProblemError` if their shapes do not match.
        """
        known = self.operation.further_inputs
        fields = {known[name].field: known[name].value_for(array) for name, (_, array) in self.further.items()}
        if self.operation.problem_of_arrays is None:
            raise UsageError(f"'run' cannot tell a problem of {self.operation.name} from its arrays")
        try:
            return self.operation.problem_of_arrays(self.inputs, self.dtype, {**said, **fields})
        except ProblemError as error:
            shown = ", ".join(f"{name} {array.shape[self.axes_left_out :]}" for name, array in self.inputs.items())
            raise ProblemError(f"{shown}: {error}") from error

    def all_inputs(self, problem: Any) -> dict[str, np.ndarray]:
        """Every input of `problem`, C-contiguous; optional inputs are as given, or derived.

        Raises `UsageError` if one has another shape or dtype than the problem's, or is missing.
        """
        usual = self.operation.derived_inputs(problem)
        inputs = dict(self.inputs)
        for tensor in problem.inputs:
            name = tensor.name
            if name in self.further:
                place, array = self.further[name]
                if array.shape != tensor.shape or array.dtype != np.dtype(tensor.dtype):
                    raise UsageError(
                        f"{name}: {place} holds {array.dtype}{array.shape}; it has to be {tensor.dtype}{tensor.shape}: "
                        f"({', '.join(tensor.axes)})"
                    )
                inputs[name] = array
            elif name in usual:
                inputs[name] = usual[name]
            elif name not in inputs:
                raise UsageError(f"this problem has an input {name}; give it with {option_of_array(name)} FILE.npy")
        # Copies: later changes to the files must not affect a run.
        return {name: np.array(array, array.dtype.newbyteorder("="), order="C") for name, array in inputs.items()}

    def with_their_axes(self, output: np.ndarray) -> np.ndarray:
        """An output with the axes of the user's arrays."""
        whole: np.ndarray = output[(0,) * self.axes_left_out]
        return whole

    def npy(self, output: np.ndarray) -> bytes:
        """An output as the content of an .npy file, with the axes of the user's arrays; bfloat16 as uint16."""
        output = self.with_their_axes(output)
        if output.dtype == NUMPY_DTYPES["bfloat16"]:
            output = output.view(np.uint16)
        content = io.BytesIO()
        np.save(content, output, allow_pickle=False)
        return content.getvalue()


def load_arrays(
    operation: Operation,
    paths: Mapping[str, Path],
    dtype: str | None = None,
    further: Mapping[str, Path] | None = None,
) -> UserArrays:
    """Read the inputs from .npy files; see `gather_arrays`. `further` are files of inputs that only some problems have.

    Raises `UsageError` if a file is missing or broken, too.
    """
    given, others = (
        {name: Given(str(path), _read(name, path)) for name, path in files.items()} for files in (paths, further or {})
    )
    return gather_arrays(operation, given, dtype, others)


def gather_arrays(
    operation: Operation,
    given: Mapping[str, Given],
    dtype: str | None = None,
    further: Mapping[str, Given] | None = None,
) -> UserArrays:
    """Take an array per input: all with the axes of the operation's tensors, or all without the first.

    Without the first axes, a single head of Q is a matrix. `dtype` is the required dtype; None accepts that of the
    arrays. Inputs with a dtype of their own, such as lse, always have that one. NumPy has no bfloat16: with `dtype`
    bfloat16 an array may have its bits, as uint16 or as the two raw bytes that saving an `ml_dtypes.bfloat16` array
    gives. Arrays of float8_e4m3fn may have their bits, as uint8 or as raw bytes. `further` are inputs that only some
    problems have; `all_inputs` checks them against the problem. Raises `UsageError` for another dtype or another shape.
    """
    plain = _plain_with(operation, further or ())
    tensors = {tensor.name: tensor for tensor in plain.inputs if tensor.name not in operation.further_inputs}
    if dtype is not None and dtype not in NUMPY_DTYPES:
        raise UsageError(f"dtype is {dtype!r}; choose one of {', '.join(NUMPY_DTYPES)}")
    floats = (*NUMPY_DTYPES, FLOAT8)
    whole = [name for name, tensor in tensors.items() if tensor.dtype not in floats]
    own = _own_dtypes(plain, floats)
    arrays = {
        name: _of_numbers(tensors[name], each) if name in whole else _with_dtype(name, each, own.get(name, dtype))
        for name, each in given.items()
    }
    shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
    left_out = _axes_left_out(tensors, arrays, shapes)
    if any(0 in array.shape for array in arrays.values()):
        raise UsageError(f"{shapes}: no extent may be 0")
    dtypes = {name: str(array.dtype.newbyteorder("=")) for name, array in arrays.items() if name not in (*whole, *own)}
    if len(set(dtypes.values())) > 1:
        raise UsageError(f"{', '.join(f'{n} is {d}' for n, d in dtypes.items())}; all must have the same dtype")
    inputs = {name: array[(None,) * left_out] for name, array in arrays.items()}
    return UserArrays(operation, inputs, next(iter(dtypes.values())), left_out, further or {})


def _plain_with(operation: Operation, further: Iterable[str]) -> Any:
    """The plainest problem that has these further inputs, as far as they decide how others are stored."""
    known = [operation.further_inputs[name] for name in further]
    return operation.problem.from_fields({each.field: each.value for each in known if each.decides_dtypes})


def _own_dtypes(plain: Any, floats: Sequence[str]) -> dict[str, str]:
    """Dtypes of floating-point inputs that do not have the problem's dtype, by name: lse is always float32."""
    if "dtype" not in plain.field_names():
        return {}
    other = dataclasses.replace(plain, dtype="bfloat16")
    return {t.name: t.dtype for t in other.inputs if t.dtype in floats and t.dtype != "bfloat16"}


def option_of_array(name: str) -> str:
    """The option for an array's file: `K_scale` -> `--k-scale`."""
    return f"--{name.lower().replace('_', '-')}"


def axes_that_may_lack(tensors: Iterable[Tensor]) -> int:
    """How many leading axes all inputs may lack together: all but the last two, if they are the same in all inputs."""
    axes = [tensor.axes for tensor in tensors]
    lacking = max(len(each) for each in axes) - 2
    alike = len({each[:lacking] for each in axes}) == 1 and min(len(each) for each in axes) > lacking
    return lacking if lacking > 0 and alike else 0


def _axes_left_out(tensors: Mapping[str, Tensor], arrays: Mapping[str, np.ndarray], shapes: str) -> int:
    """The number of leading axes that the arrays lack. Raises `UsageError` if their axes are invalid."""
    lacking = axes_that_may_lack(tensors.values())
    left_out = {len(tensors[name].axes) - array.ndim for name, array in arrays.items()}
    if left_out in ({0}, {lacking}):
        return left_out.pop()
    if len({tensor.axes for tensor in tensors.values()}) == 1:
        axes = next(iter(tensors.values())).axes
        also = f", or all ({', '.join(axes[lacking:])})" if lacking else ""
        raise UsageError(f"{shapes}: all have to be ({', '.join(axes)}){also}")
    wanted = ", ".join(f"{name} ({', '.join(tensor.axes)})" for name, tensor in tensors.items())
    also = f", or all without the first {lacking} axes" if lacking else ""
    raise UsageError(f"{shapes}: they have to be {wanted}{also}")


def _read(name: str, path: Path) -> np.ndarray:
    try:
        # O_NONBLOCK: opening a named pipe would wait for a writer.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise UsageError(f"{name}: cannot read {path}: it is not a regular file; save the array to one")
            if file.read(len(NPY_MAGIC)) != NPY_MAGIC:
                raise UsageError(f"{name}: {path} is not an .npy file; write it with numpy.save")
            file.seek(0)
            return _mapped(name, path, file, status.st_size)
    except OSError as error:
        raise UsageError(f"{name}: cannot read {path}: {error.strerror or error}") from error
    except (ValueError, TypeError, EOFError, SyntaxError, OverflowError, RecursionError, MemoryError) as error:
        # NumPy raises all of these for truncated or damaged headers.
        raise UsageError(f"{name}: {path} is a broken .npy file: {' '.join(str(error).split())}") from error


def _mapped(name: str, path: Path, file: IO[bytes], size_bytes: int) -> np.ndarray:
    """The memory-mapped array: its shape may be rejected, and it may exceed memory, so nothing is read yet.

    Raises `UsageError` or `ValueError` if the file has no plain numbers, or not as many as its header says.
    """
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"version {version} of the format, which arrays of plain numbers do not have")
    shape, is_fortran, dtype = readers[version](file)
    if dtype.hasobject:
        raise UsageError(f"{name}: {path} holds Python objects; save it once more after .astype(numpy.float32)")
    expected = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or expected != size_bytes - file.tell():
        wanted = "more than 2^63" if expected >> 63 else f"{expected:,}"
        raise ValueError(f"its header asks for {wanted} bytes of data, and {size_bytes - file.tell():,} are there")
    if not expected:
        return np.empty(shape, dtype)
    return np.memmap(file, dtype, "r", file.tell(), shape, "F" if is_fortran else "C")


def _of_numbers(tensor: Tensor, given: Given) -> np.ndarray:
    """An array whose dtype does not depend on the problem, such as a table of int32."""
    native = given.array.dtype.newbyteorder("=")
    if native != np.dtype(tensor.dtype):
        raise UsageError(
            f"{tensor.name}: {given.place} holds {native}; it has to be {tensor.dtype}. Convert it with "
            f".astype(numpy.{tensor.dtype})"
        )
    return given.array


def _with_dtype(name: str, given: Given, wanted: str | None) -> np.ndarray:
    place, array = given
    native = array.dtype.newbyteorder("=")
    if native == NUMPY_DTYPES["bfloat16"] and wanted in (None, "bfloat16"):
        return array
    if wanted == FLOAT8:
        if native != np.dtype(FLOAT8) and native != np.uint8 and native.str != "|V1":
            raise UsageError(f"{name}: {place} holds {native}; with scales it has to be {FLOAT8}, or its bits as uint8")
        return array.view(np.dtype(FLOAT8))
    bits = native == np.uint16 or native.str in ("|V2", "<V2")
    if wanted == "bfloat16" and bits:
        return array.astype(native, copy=False).view(NUMPY_DTYPES["bfloat16"])
    if bits:
        raise UsageError(
            f"{name}: {place} holds {native}; if these are the bits of bfloat16, say so with --dtype bfloat16"
        )
    if native.name not in ("float32", "float16"):
        raise UsageError(
            f"{name}: {place} holds {native}; it has to be float32, float16 or, with --dtype bfloat16, uint16. "
            "Convert it with .astype(numpy.float32)"
        )
    if wanted is not None and native.name != wanted:
        raise UsageError(f"{name}: {place} holds {native}, but --dtype is {wanted}; nothing is converted silently")
    return array
