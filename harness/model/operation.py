"""Defines an operation: the mathematics of a computation and everything derived from it, independent of kernels.

An operation is a folder of `harness/operations` whose module `operation` defines an `Operation` named `OPERATION`.
There is no list of operations: `operation_names` searches for them, and `operation_named` returns one, whose module is
imported when it is first used.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from harness.support.errors import UsageError
from harness.support.suggestion import did_you_mean

if TYPE_CHECKING:
    import numpy as np
    from hypothesis import strategies as st

    from harness.model.arithmetic.summation_tree import SummationTree
    from harness.model.array_types import Arrays, Float64Array
    from harness.model.cases.axes import Axes, ProbedAxis
    from harness.model.cases.build import Build, Builds
    from harness.model.cases.case import Case
    from harness.model.cases.property import Property
    from harness.model.cases.regime import Regime
    from harness.model.drawn_tensor import DrawnTensor
    from harness.model.invariance import Change
    from harness.model.numerics import Numerics
    from harness.model.problem import BaseProblem


@dataclass(frozen=True)
class IoBound:
    """A bound of the form Omega(expression), with an unknown constant factor."""

    on_chip_bytes: int
    """Bytes of registers and shared memory that a thread block can use in one pass over the data."""
    on_chip_elements: int
    """M: number of elements of the problem's dtype in `on_chip_bytes`."""
    expression_bytes: float
    """min(N_q N_k d / sqrt(M), N_q N_k d^2 / M) elements for each query head, in bytes. N^2 of the paper is N_q N_k."""
    large_memory: bool
    """Whether M >= d^2. The second term is then the smaller one, and FlashAttention's order of loops is optimal."""
    applies: bool
    """Whether M < N d for the longer of the two lengths. Otherwise K and V of a head fit on chip, and the compulsory
    bytes are the bound."""


PACKAGE = "harness.operations"
DEFAULT_OPERATION = "attention"


@dataclass(frozen=True)
class Tolerance:
    """Largest errors of an output, element by element, in float64 and in the output's shape.

    0 if only the answer rounded to nearest is correct, inf if any value is, including NaN, and NaN if the answer is not
    finite.
    """

    allowed: Float64Array
    """Largest error of a correct kernel. A larger error is wrong."""
    expected: Float64Array
    """Expected error for random roundings. A larger error is suspicious. At most `allowed`."""


@dataclass(frozen=True)
class Part:
    """A part of a problem's outputs, checked in place of the whole if the whole would take minutes."""

    where: tuple[slice, ...] = ()
    """Index into every output along its first axes; empty for the whole output."""
    name: str = "everywhere"
    """Description of its location, for messages."""
    others: Mapping[str, tuple[slice, ...]] = field(default_factory=dict)
    """Indices into outputs that need a different one, by output."""

    def of(self, output: str) -> tuple[slice, ...]:
        """Return the index into this output."""
        return self.others.get(output, self.where)


WHOLE = Part()


@dataclass(frozen=True)
class Hints:
    """Factors and addends by which wrong values of an output are known to differ, and what mistake each indicates."""

    factors: Mapping[float, str] = field(default_factory=dict)
    addends: Mapping[float, str] = field(default_factory=dict)
    """Addends to look for; empty if differences are not informative."""


@dataclass(frozen=True)
class FurtherInput:
    """An input that only some problems have."""

    field: str
    """The problem's field that says whether it has the input."""
    value: Any
    """A value of the field with which the input has all its axes."""
    value_of: Callable[[np.ndarray], Any] | None = None
    """(array) -> the field's value in a problem with this array as the input; None if it is always `value`."""
    follows: bool = False
    """Whether it follows from the problem if it is not given (`Operation.derived_inputs`)."""
    decides_dtypes: bool = False
    """Whether other inputs have other dtypes in problems that have it."""

    def value_for(self, array: np.ndarray) -> Any:
        """Return the field's value in a problem with this array as the input."""
        return self.value if self.value_of is None else self.value_of(array)


@dataclass(frozen=True)
class OrderedSum:
    """A sum whose order can be revealed."""

    name: str
    """Name of its result, such as O."""
    meaning: str
    """The formula, in words."""
    noun: str
    """Plural noun for its terms."""
    reveal: Callable[[], SummationTree] = field(compare=False, repr=False)
    """Runs the kernel and returns the order. Raises `OrderNotRevealed`."""


TrivialAnswer = Callable[[Part], Mapping[str, "Float64Array"]]
"""Function from a part of a problem to all outputs that are not optional, in float64, in the shapes of
`Operation.answer`."""


class AnswerFunction(Protocol):
    """Type of `Operation.answer`."""

    def __call__(self, problem: Any, inputs: Arrays, part: Part = WHOLE, /) -> Mapping[str, Float64Array]:
        """Return every output of this part in float64, by name."""
        ...


class ToleranceFunction(Protocol):
    """Type of `Operation.tolerance`."""

    def __call__(
        self,
        problem: Any,
        inputs: Arrays,
        answer: Mapping[str, Float64Array],
        numerics: Numerics,
        part: Part = WHOLE,
        /,
    ) -> Mapping[str, Tolerance]:
        """Return the tolerance of every output of this part, by name."""
        ...


def field_in_words(problem: Any, name: str) -> list[str]:
    """Describe a field and its value, such as `heads 8`. A dtype is given without the name of the field."""
    value = getattr(problem, name)
    return [value if name == "dtype" else f"{name} {value}"]


def cases_of(strategies: str) -> Callable[..., st.SearchStrategy[Case]]:
    """Return an `Operation.cases` that calls `cases` of a module, which is imported then, as it imports Hypothesis."""

    def cases(
        builds: Sequence[Any], most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]
    ) -> st.SearchStrategy[Case]:
        module = importlib.import_module(strategies)
        found: st.SearchStrategy[Case] = module.cases(
            builds, module.MOST_TILES if most_tiles is None else most_tiles, checks, takes=takes
        )
        return found

    return cases


def _unchanged(case: Case, builds: Builds) -> Case:
    return case


@dataclass(frozen=True, kw_only=True, eq=False)
class Operation:
    """Facts and functions of an operation. None of them depends on a kernel.

    In all functions, `problem` is an instance of the class `problem`, and `inputs` maps the name of each input to its
    array, in the shape and dtype that the problem declares. Fields with a default are optional.
    """

    # The computation.

    name: str
    """Name on the command line, such as `attention`."""
    idea: str
    """The formula, in one line."""
    problem: type[BaseProblem]
    """Class of its problems, whose fields become options of the command line."""
    regimes: Mapping[str, Regime]
    """Ways to draw inputs, by name, the plainest first."""
    derived_inputs: Callable[[Any], Mapping[str, np.ndarray]] = lambda problem: {}
    """(problem) -> inputs that follow from the problem alone, such as the arrays of a mask, by name. They are neither
    drawn nor given by the user."""
    answer: AnswerFunction
    """(problem, inputs, part) -> every output in float64, by name. For a part of the problem, the result equals the
    whole answer indexed by that part."""
    tolerance: ToleranceFunction
    """(problem, inputs, answer, numerics, part) -> the tolerance of each output of a kernel with these numerics for
    these inputs. `answer` is the result of the function `answer` for the same part."""
    numerics_used: Callable[[Any], Sequence[str]] = lambda problem: ()
    """(problem) -> names of the fields of `Numerics` on which its tolerances depend."""
    exact_outputs: Callable[[Any, Arrays, Part], Mapping[str, np.ndarray]] = lambda problem, inputs, part: {}
    """(problem, inputs, part) -> outputs whose bits are determined, in their dtype, by name. They are compared bit for
    bit, so that a NaN has to be the same NaN. `answer` and `tolerance` have them, too, with a tolerance of 0."""
    element_in_words: Callable[[Any, Arrays, str, tuple[int, ...]], str] = lambda problem, inputs, output, index: ""
    """(problem, inputs, output, index) -> what an element of an output is, besides its index, such as `key 3 of
    sequence 1`, for messages. Empty if the index says it all."""
    trivial_answers: Callable[[Any, Arrays], Mapping[str, TrivialAnswer]] = lambda problem, inputs: {}
    """(problem, inputs) -> wrong answers that take no work, by name, such as the mean of V. `execution.judging.power`
    tries them, besides zeros and the answers of neighbouring rows and heads, to determine whether passing proves
    anything."""
    shorter: Callable[[Any], Iterator[tuple[str, Any]]] = lambda problem: iter(())
    """(problem) -> the same problem with smaller and smaller lengths, each with the options that set these lengths,
    such as `--kv-len 512`."""
    needed_read_bytes: Callable[[Any, Arrays], int] = lambda problem, inputs: 0
    """(problem, inputs) -> bytes of these inputs that every correct kernel reads, which are those of elements on which
    the answer depends. A variant with a lower count fails, so the value must not be too large. 0 if unknown."""
    parts: Callable[[Any, float], tuple[Part, ...]] = lambda problem, whole_flops: (WHOLE,)
    """(problem, whole_flops) -> the parts to check if an answer takes more than `whole_flops` floating-point
    operations. The whole if it takes no more."""

    # For the fuzzer.

    builds_of: Callable[[int], tuple[Build, ...]]
    """(seed) -> the builds of a campaign with this seed, in order. The first is the plainest one for every seed."""
    cases: Callable[[Sequence[Any], int | None, Sequence[str], Sequence[str]], st.SearchStrategy[Case]]
    """(builds, most_tiles, checks, takes) -> a Hypothesis strategy for cases of these builds: problem, regime, seed,
    edits and, in some of them, one of the properties `checks`. Problems have at most `most_tiles` tiles (None: a limit
    chosen by the operation), and no features other than `takes` (`Variant.takes`)."""
    axes: Callable[[int | None, Sequence[str], Sequence[str]], Axes | None] = lambda most_tiles, checks, takes: None
    """(most_tiles, checks, takes) -> the axes along which a campaign varies cases systematically, with the arguments of
    `cases`. `checks` may contain `property.SANITIZER`. None: a campaign uses only `cases`."""
    leaves_regime: Callable[[Case], bool] = lambda case: False
    """(case) -> whether its inputs may leave its regime, such as after an edit. Variants that are expected to fail in
    some regimes (`Variant.fails_in`) do not run such a case."""
    properties: Mapping[str, Property] = field(default_factory=dict)
    """Properties that must hold besides the answer, by name."""
    changes: Callable[[Any, Arrays, str], Iterator[Change]] = lambda problem, inputs, kind: iter(())
    """(problem, inputs, kind) -> problems in which elements of the outputs have to have the same bits, for the kinds
    `batch` and `padding` of `INVARIANCES`."""
    simpler: Callable[[Case, Builds], Iterator[Case]] = lambda case, builds: iter(())
    """(case, builds) -> cases that are smaller in one respect, the most promising first. Some may not be smaller."""
    size: Callable[[Case, Builds], tuple[object, ...]]
    """(case, builds) -> its size, a tuple that is compared field by field. The smallest failing case is reported."""
    enlarged: Callable[[Case, Builds], Case] = _unchanged
    """(case, builds) -> the same inputs in a larger problem, in which the pattern of a mistake is visible."""
    probed_axes: Callable[[Case, Builds], Sequence[ProbedAxis]] = lambda case, builds: ()
    """(case, builds) -> lengths of a failing case that are varied to find at which of them it fails, the most
    informative first."""
    peculiarities: Callable[[Case, Sequence[int], Sequence[int]], list[str]] = lambda case, tiles, assumed_tile: []
    """(case, tiles, assumed_tile) -> descriptions of what distinguishes the case from the plainest one. `tiles` is the
    result of `Build.tiles`, `assumed_tile` that of `Build.assumed_tile`."""
    tile_names: Mapping[str, str] = field(default_factory=dict)
    """Variants' names of tile sizes by what they count: `row` and `key`, such as `Br` and `Bc`."""
    known_mistakes: Callable[[Any, Arrays, int | None], Iterator[tuple[str, Mapping[str, Float64Array]]]] = (
        lambda problem, inputs, tile_keys: iter(())
    )
    """(problem, inputs, tile_keys) -> complete wrong answers of known mistakes, in float64 by output, each with a name
    that completes `equals ...`, such as `the answer without the last key`. `tile_keys` is the number of keys per tile,
    None if the variant declares none. The answers are computed lazily."""
    hints: Callable[[Any, str], Hints] = lambda problem, output: Hints()
    """(problem, output) -> factors and addends by which wrong values of the output are known to differ."""

    # For individual commands.

    settings: tuple[str, ...] = ()
    """Fields of a problem that do not follow from the shapes and dtypes of its inputs."""
    further_inputs: Mapping[str, FurtherInput] = field(default_factory=dict)
    """Inputs that only some problems have, by name."""
    problem_of_arrays: Callable[[Arrays, str, Mapping[str, Any]], Any] | None = None
    """(arrays, dtype, fields) -> the problem with these inputs and with `fields` for its `settings`. Raises
    `UsageError` or `ProblemError` if the arrays do not fit together. None: `run` does not support the operation."""
    lengths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Options that set several fields at once, by name, such as `seq_len` for `q_len` and `kv_len`."""
    field_in_words: Callable[[Any, str], list[str]] = field_in_words
    """(problem, name of a field) -> its words in a headline; empty if the value is not informative."""
    require_sweepable: Callable[[Any], None] = lambda problem: None
    """(problem) -> None. Raises `UsageError` if a problem is so large that even closed forms take minutes."""
    ordered_sums: Callable[..., Sequence[OrderedSum]] | None = None
    """(problem, run, known) -> the sums whose order of additions can be revealed. `run` takes a problem and inputs and
    returns a kernel's outputs. The orders `known`, by sum, are tried first. Raises `UsageError` if the problem has no
    such sum. None: no problem has one."""
    io_bound: Callable[[Any, int], IoBound] | None = None
    """(problem, on_chip_bytes) -> the lower bound on the bytes moved with this much on-chip memory. None if no theorem
    is known."""
    libraries: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    """Kernels of other projects, by name. Each function creates a contender for a GPU's stage
    (`gpu.stage.GpuStage`)."""
    libraries_in_words: Callable[[str], str] | None = None
    """(version of PyTorch) -> a note about these libraries, shown below their times. None for no note."""
    flops_in_words: str = "the operations that the problem counts"
    """Description of what a problem's `flops` count."""

    @property
    def builds(self) -> tuple[Build, ...]:
        """The builds for seed 0, the plainest first."""
        return self.builds_of(0)


def operation_names() -> tuple[str, ...]:
    """Return the names of all operations, the default one first. Folders with a leading _ are not operations."""
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None and spec.submodule_search_locations is not None
    found = pkgutil.iter_modules(spec.submodule_search_locations)
    names = [module.name.replace("_", "-") for module in found if module.ispkg and not module.name.startswith("_")]
    return tuple(sorted(names, key=lambda name: (name != DEFAULT_OPERATION, name)))


@functools.cache
def _imported(name: str) -> Operation:
    operation: Operation = importlib.import_module(f"{PACKAGE}.{name.replace('-', '_')}.operation").OPERATION
    return operation


class _ImportedWhenUsed:
    """Represents an operation until a field is first used. Naming an operation imports neither it nor NumPy."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, field: str) -> Any:
        return getattr(_imported(self.name), field)

    def __reduce__(self) -> tuple[Callable[[str], Operation], tuple[str]]:
        return operation_named, (self.name,)


@functools.cache
def operation_named(name: str) -> Operation:
    """Return the operation of this name. Raises `UsageError` with the most similar name if there is none."""
    names = operation_names()
    if name not in names:
        raise UsageError(f"no operation {name!r}{did_you_mean(name, names, 0.4)} Operations: {', '.join(names)}")
    return cast(Operation, _ImportedWhenUsed(name))


def operation_of(problem: BaseProblem) -> Operation:
    """Return the operation of this problem."""
    return operation_named(problem.operation)


def draw_inputs(problem: BaseProblem, regime: str = "normal", seed: int = 0) -> dict[str, np.ndarray]:
    """Return an array per input of `problem`, as `regime.draw` does. Raises `UsageError`."""
    from harness.model.cases.regime import draw

    operation = operation_of(problem)
    return draw(operation.regimes, problem, regime, seed, operation.derived_inputs(problem))


def draw_input_parts(
    problem: BaseProblem, regime: str = "normal", seed: int = 0
) -> dict[str, np.ndarray | DrawnTensor]:
    """Return inputs like `draw_inputs`, except that large ones are drawn only when they are used."""
    from harness.model.cases.regime import draw_parts

    operation = operation_of(problem)
    return draw_parts(operation.regimes, problem, regime, seed, operation.derived_inputs(problem))


ROWS_PER_PART = 32
FEWEST_PARTS, MOST_PARTS = 3, 12


def oracle_flops(flops: float, q_len: int) -> float:
    """Return the cost of a whole answer for the oracle, in flops of a kernel.

    `flops` is a kernel's count for the same answer. With fewer rows than a part has, the cost of the keys dominates.
    """
    return flops * max(1.0, ROWS_PER_PART / q_len)


def part_flops(kv_len: int, head_dim: float) -> float:
    """Return the cost of one part for the oracle, in flops of a kernel.

    `head_dim` is the mean of the elements per row of K and of V.
    """
    return 4.0 * ROWS_PER_PART * kv_len * head_dim


def count_of_parts(wanted: int, flops_per_part: float, whole_flops: float) -> int:
    """Return how many of the `wanted` parts can be checked for `whole_flops`, at most `MOST_PARTS`.

    The result is at least `FEWEST_PARTS` (a first, a middle and a last part), unless fewer are wanted, and at least 2.
    """
    return max(2, min(wanted, MOST_PARTS, max(FEWEST_PARTS, int(whole_flops // flops_per_part))))
