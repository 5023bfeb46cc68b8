"""What an operation is: the mathematics of one thing to compute, and all that follows from it. Knows no kernel.

An operation is a folder of `harness/operations`, whose module `operation` holds an `Operation` under the name
`OPERATION`. Nothing lists them: `operation_names` looks, and `operation_named` returns one, whose module is imported
when it is first used.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from harness.support.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from hypothesis import strategies as st

    from harness.model.arithmetic.summation_tree import SummationTree
    from harness.model.cases.axes import Axes
    from harness.model.cases.build import Build, Builds
    from harness.model.cases.case import Case
    from harness.model.cases.probed_axis import ProbedAxis
    from harness.model.cases.property import Arrays, Property
    from harness.model.cases.regime import Regime
    from harness.model.drawn_tensor import DrawnTensor
    from harness.model.io_bound import IoBound
    from harness.model.numerics import Numerics
    from harness.model.problem import BaseProblem

    Float64Array = npt.NDArray[np.float64]

PACKAGE = "harness.operations"
DEFAULT_OPERATION = "attention"


@dataclass(frozen=True)
class Tolerance:
    """The largest errors of one output, element by element, in float64, shaped as the output.

    0 where nothing but the answer, rounded to nearest, will do; inf where nothing is promised, not even a number; NaN
    where the answer is not finite.
    """

    allowed: Float64Array
    """What a correct kernel may be off by: above is wrong."""
    expected: Float64Array
    """What it is expected to be off by, as if roundings were random: above is suspicious. At most `allowed`."""


@dataclass(frozen=True)
class Part:
    """Some of a problem's outputs, as they are checked where the whole would take minutes."""

    where: tuple[slice, ...] = ()
    """An index into every output, along their first axes; empty for all of it."""
    name: str = "everywhere"
    """Where it lies, for messages."""
    others: Mapping[str, tuple[slice, ...]] = field(default_factory=dict)
    """The index into those outputs that have one of their own."""

    def of(self, output: str) -> tuple[slice, ...]:
        """The index into that output."""
        return self.others.get(output, self.where)


WHOLE = Part()


@dataclass(frozen=True)
class Hints:
    """Numbers that wrong answers of an output are known to differ by, and what each is a sign of."""

    factors: Mapping[float, str] = field(default_factory=dict)
    addends: Mapping[float, str] = field(default_factory=dict)
    """Sums to be looked for; empty where a difference says nothing."""


@dataclass(frozen=True)
class OrderedSum:
    """A sum whose order can be revealed."""

    name: str
    """What it makes, such as O."""
    meaning: str
    """The formula, in words."""
    noun: str
    """What is counted through, in the plural."""
    reveal: Callable[[], SummationTree] = field(compare=False, repr=False)
    """Asks the kernel. Raises `OrderNotRevealed`."""


TrivialAnswer = Callable[[Part], Mapping[str, "Float64Array"]]
"""From a part of a problem to outputs in float64, shaped as those of `Operation.answer`: all that are not optional."""


class AnswerFunction(Protocol):
    """The type of `Operation.answer`."""

    def __call__(self, problem: Any, inputs: Arrays, part: Part = WHOLE, /) -> Mapping[str, Float64Array]:
        """Every output of that part in float64, by name."""
        ...


class ToleranceFunction(Protocol):
    """The type of `Operation.tolerance`."""

    def __call__(
        self,
        problem: Any,
        inputs: Arrays,
        answer: Mapping[str, Float64Array],
        numerics: Numerics,
        part: Part = WHOLE,
        /,
    ) -> Mapping[str, Tolerance]:
        """The tolerance of every output of that part, by name."""
        ...


def field_in_words(problem: Any, name: str) -> list[str]:
    """The field and its value, such as `heads 8`; a dtype by itself."""
    value = getattr(problem, name)
    return [value if name == "dtype" else f"{name} {value}"]


def _unchanged(case: Case, builds: Builds) -> Case:
    return case


@dataclass(frozen=True, kw_only=True, eq=False)
class Operation:
    """The mathematics of one thing to compute: its facts and its functions. None of them knows a kernel.

    In all functions `problem` is an instance of the class `problem`, and `inputs` maps the name of each input to its
    array, in the shape and dtype that the problem gives it. Fields with a default are optional.
    """

    # What is computed.

    name: str
    """How the command line calls it, such as `attention`."""
    idea: str
    """The formula, in one line."""
    problem: type[BaseProblem]
    """The class of its problems, whose fields become options of the command line."""
    regimes: Mapping[str, Regime]
    """The ways to draw inputs, by name, the plainest first."""
    derived_inputs: Callable[[Any], Mapping[str, np.ndarray]] = lambda problem: {}
    """problem -> the inputs that follow from the problem alone, such as the arrays of a mask, by name. They are neither
    drawn nor given by the user."""
    answer: AnswerFunction
    """(problem, inputs, part) -> every output in float64, by name. Of a part of the problem, what indexing the whole
    answer by that part would give."""
    tolerance: ToleranceFunction
    """(problem, inputs, answer, numerics, part) -> how far off each output of a kernel with these numerics may be, for
    these very inputs. `answer` is what the function `answer` returned for the same part."""
    numerics_used: Callable[[Any], Sequence[str]] = lambda problem: ()
    """problem -> the fields of `Numerics` that its tolerances depend on."""
    trivial_answers: Callable[[Any, Arrays], Mapping[str, TrivialAnswer]] = lambda problem, inputs: {}
    """(problem, inputs) -> wrong answers that take no work, by name, such as the mean of V. `execution.judging.power`
    tries them, besides zeros and the answers of neighbouring rows and heads, to learn whether a pass proves
    anything."""
    shorter: Callable[[Any], Iterator[tuple[str, Any]]] = lambda problem: iter(())
    """problem -> the same problem at smaller and smaller lengths, each behind the options that set these lengths, such
    as `--kv-len 512`."""
    needed_read_bytes: Callable[[Any, Arrays], int] = lambda problem, inputs: 0
    """(problem, inputs) -> how many bytes of these very inputs every correct kernel reads: those of elements on which
    the answer depends. A variant that is counted with fewer fails, so it must not be too large; 0 where unknown."""
    parts: Callable[[Any, float], tuple[Part, ...]] = lambda problem, whole_flops: (WHOLE,)
    """(problem, whole_flops) -> the parts in which an answer that takes more than `whole_flops` floating-point
    operations is checked; the whole where it takes no more."""

    # What the fuzzer draws and looks at.

    builds_of: Callable[[int], tuple[Build, ...]]
    """seed -> what kernels may have compiled in, in the order in which a campaign with that seed takes it. The plainest
    build is the first, whatever the seed."""
    cases: Callable[[Sequence[Any], int | None, Sequence[str], Sequence[str]], st.SearchStrategy[Case]]
    """(builds, most_tiles, checks, takes) -> a Hypothesis strategy for cases of these builds: problem, regime, seed,
    edits and, in a share of them, one of the properties `checks`. Problems have at most `most_tiles` tiles, by default
    as many as the operation chooses, and no features but `takes` (`Variant.takes`)."""
    axes: Callable[[int | None, Sequence[str], Sequence[str]], Axes | None] = lambda most_tiles, checks, takes: None
    """(most_tiles, checks, takes) -> the axes along which a campaign varies cases on purpose; arguments as of `cases`.
    `checks` may contain `property.SANITIZER`. None: a campaign has what `cases` happens to draw."""
    leaves_regime: Callable[[Case], bool] = lambda case: False
    """case -> whether its inputs may lie outside of what its regime is about, such as after an edit. Variants that are
    expected to fail in some regimes (`Variant.fails_in`) are not run on such a case."""
    properties: Mapping[str, Property] = field(default_factory=dict)
    """What must hold besides the answer itself, by name."""
    simpler: Callable[[Case, Builds], Iterator[Case]] = lambda case, builds: iter(())
    """(case, builds) -> cases that are smaller in one respect, the most worthwhile first; some may be no smaller."""
    size: Callable[[Case, Builds], tuple[object, ...]]
    """(case, builds) -> its size, compared field by field: of two failing cases the smaller one is reported."""
    enlarged: Callable[[Case, Builds], Case] = _unchanged
    """(case, builds) -> the same inputs in a problem that is large enough for the pattern of a mistake to show."""
    probed_axes: Callable[[Case, Builds], Sequence[ProbedAxis]] = lambda case, builds: ()
    """(case, builds) -> the lengths of a failing case that are varied to see at which of them it fails, the most
    telling first."""
    peculiarities: Callable[[Case, Sequence[int]], list[str]] = lambda case, tiles: []
    """(case, tiles) -> what the case has beyond the plainest one, in words; `tiles` is what `Build.tiles` returned."""
    tile_names: Mapping[str, str] = field(default_factory=dict)
    """What variants call their sizes of tiles, by what is counted: `row` and `key`, such as `Br` and `Bc`."""
    known_mistakes: Callable[[Any, Arrays, int | None], Iterator[tuple[str, Mapping[str, Float64Array]]]] = (
        lambda problem, inputs, tile_keys: iter(())
    )
    """(problem, inputs, tile_keys) -> whole wrong answers in float64 that mistakes are known to give, by output, each
    behind a name that completes `equals ...`, such as `the answer without the last key`. `tile_keys` is the number of
    keys per tile, None where the variant declares none. Computed one by one, as they are consumed."""
    hints: Callable[[Any, str], Hints] = lambda problem, output: Hints()
    """(problem, output) -> factors and addends by which wrong values of that output are known to differ."""

    # What single commands use.

    settings: tuple[str, ...] = ()
    """The fields of a problem that do not follow from the shapes and the dtype of its inputs."""
    further_inputs: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    """The inputs that only some problems have, by name: the field of the problem and its value in those that do."""
    problem_of_arrays: Callable[[Arrays, str, Mapping[str, Any]], Any] | None = None
    """(arrays, dtype, fields) -> the problem that these inputs pose, with `fields` for its `settings`. Raises
    `UsageError` or `ProblemError` where arrays do not fit together. None: `run` does not take this operation."""
    lengths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Options that set several fields at once, by name, such as `seq_len` for `q_len` and `kv_len`."""
    field_in_words: Callable[[Any, str], list[str]] = field_in_words
    """(problem, name of a field) -> its words in a headline; none where the value says nothing."""
    require_sweepable: Callable[[Any], None] = lambda problem: None
    """problem -> None. Raises `UsageError` where a problem is so large that even closed forms take minutes."""
    ordered_sums: Callable[..., Sequence[OrderedSum]] | None = None
    """(problem, run, known) -> the sums whose order of additions can be revealed. `run` takes a problem and inputs and
    returns a kernel's outputs; the orders `known`, by sum, are tried first. Raises `UsageError` where this problem has
    none. None: no problem has any."""
    io_bound: Callable[[Any, int], IoBound] | None = None
    """(problem, on_chip_bytes) -> the fewest bytes with which so much on-chip memory can solve the problem. None where
    no theorem is known."""
    libraries: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    """Kernels of other projects, by name: each function makes a contender of a GPU's stage (`gpu.stage.GpuStage`)."""
    libraries_in_words: Callable[[str], str] | None = None
    """version of PyTorch -> a note on the rows of these libraries, below their times. None where there are none."""
    flops_in_words: str = "the operations that the problem counts"
    """What a problem's `flops` count."""

    @property
    def builds(self) -> tuple[Build, ...]:
        """What kernels may have compiled in, the plainest first: the builds of seed 0."""
        return self.builds_of(0)


def operation_names() -> tuple[str, ...]:
    """Every operation, the default one first."""
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None and spec.submodule_search_locations is not None
    found = pkgutil.iter_modules(spec.submodule_search_locations)
    names = [module.name.replace("_", "-") for module in found if module.ispkg]
    return tuple(sorted(names, key=lambda name: (name != DEFAULT_OPERATION, name)))


@functools.cache
def _imported(name: str) -> Operation:
    operation: Operation = importlib.import_module(f"{PACKAGE}.{name.replace('-', '_')}.operation").OPERATION
    return operation


class _ImportedWhenUsed:
    """Stands for an operation until the first of its fields is used: to name one imports neither it nor NumPy."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, field: str) -> Any:
        return getattr(_imported(self.name), field)

    def __reduce__(self) -> tuple[Callable[[str], Operation], tuple[str]]:
        return operation_named, (self.name,)


@functools.cache
def operation_named(name: str) -> Operation:
    """The operation of that name. Raises `UsageError` with the nearest name where there is none."""
    names = operation_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise UsageError(f"no operation {name!r}{hint} There are {', '.join(names)}")
    return cast(Operation, _ImportedWhenUsed(name))


def operation_of(problem: BaseProblem) -> Operation:
    """The operation whose problem this is."""
    return operation_named(problem.operation)


def draw_inputs(problem: BaseProblem, regime: str = "normal", seed: int = 0) -> dict[str, np.ndarray]:
    """An array per input of `problem`, as `regime.draw` makes them. Raises `UsageError`."""
    from harness.model.cases.regime import draw

    operation = operation_of(problem)
    return draw(operation.regimes, problem, regime, seed, operation.derived_inputs(problem))


def draw_input_parts(
    problem: BaseProblem, regime: str = "normal", seed: int = 0
) -> dict[str, np.ndarray | DrawnTensor]:
    """An input per name, as `draw_inputs` returns them, but of large ones nothing is drawn before it is used."""
    from harness.model.cases.regime import draw_parts

    operation = operation_of(problem)
    return draw_parts(operation.regimes, problem, regime, seed, operation.derived_inputs(problem))
