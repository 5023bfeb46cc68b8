"""What an operation is: the mathematics of one thing to compute, and all that follows from it. Knows no kernel.

An operation is a folder of `harness/operations`, whose module `operation` holds an `Operation` under the name
`OPERATION`. Nothing lists them: `operation_names` looks, and `operation_named` imports the one that is asked for.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from harness.support.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from hypothesis import strategies as st

    from harness.model.axes import Axes
    from harness.model.build import Build, Builds
    from harness.model.case import Case
    from harness.model.drawn_tensor import DrawnTensor
    from harness.model.io_bound import IoBound
    from harness.model.numerics import Numerics
    from harness.model.probed_axis import ProbedAxis
    from harness.model.problem import BaseProblem
    from harness.model.property import Arrays, Property
    from harness.model.regime import Regime
    from harness.model.summation_tree import SummationTree

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


class Operation(ABC):
    """The mathematics of one thing to compute. Its methods import what they need: naming one costs nothing."""

    name: ClassVar[str]
    """How the command line calls it, such as `attention`."""
    idea: ClassVar[str]
    """One line."""
    heeds: ClassVar[tuple[str, ...]] = ()
    """The fields of `Numerics` that its tolerances depend on."""
    has_io_bound: ClassVar[bool] = False
    """Whether `io_bound` knows a theorem."""

    @property
    @abstractmethod
    def problem(self) -> type[BaseProblem]:
        """The class of its problems, whose fields are the command line's options."""

    @property
    @abstractmethod
    def regimes(self) -> Mapping[str, Regime]:
        """The ways to draw inputs, by name, the plainest first."""

    def derived_inputs(self, problem: Any) -> Mapping[str, np.ndarray]:
        """Inputs that follow from the problem alone, by name, as they are stored: nobody draws or gives them."""
        return {}

    @abstractmethod
    def answer(self, problem: Any, inputs: Arrays, part: Part = WHOLE) -> Mapping[str, Float64Array]:
        """Every output in float64 from the stored inputs, by name; of a part, as indexing the whole would give it."""

    @abstractmethod
    def tolerance(
        self,
        problem: Any,
        inputs: Arrays,
        answer: Mapping[str, Float64Array],
        numerics: Numerics,
        part: Part = WHOLE,
    ) -> Mapping[str, Tolerance]:
        """How far off each output may be for these very inputs; `answer` is what `answer` gave for the same part."""

    def heeded(self, problem: Any) -> tuple[str, ...]:
        """Those of `heeds` that the tolerances of this very problem depend on."""
        return self.heeds

    def trivial_answers(self, problem: Any, inputs: Arrays) -> Mapping[str, TrivialAnswer]:
        """What kernels give that are wrong in a trivial way of this operation's own, by name.

        `execution.power` measures them, and zeros and the answers of neighbouring rows and heads besides, to learn
        whether a passing answer proves anything.
        """
        return {}

    def shorter(self, problem: Any) -> Iterator[tuple[str, Any]]:
        """The problem at smaller and smaller lengths, each with the options that say them, such as `--kv-len 512`."""
        return iter(())

    def needed_read_bytes(self, problem: Any, inputs: Arrays) -> int:
        """How many bytes of these very inputs every right kernel reads: those whose elements the answer hangs on.

        Never too many: a variant that is counted with fewer fails. 0 where nothing is known.
        """
        return 0

    # What the fuzzer needs.

    @property
    @abstractmethod
    def builds(self) -> tuple[Build, ...]:
        """What kernels may have compiled in, the plainest first."""

    def builds_of(self, seed: int) -> tuple[Build, ...]:
        """The builds of a campaign with that seed, the plainest first: which of the others come early depends on it."""
        return self.builds

    @abstractmethod
    def cases(
        self, builds: Sequence[Build], most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]
    ) -> st.SearchStrategy[Case]:
        """Cases of these builds: problem, regime, seed, edits and, in a share of them, one of `checks`.

        `most_tiles`: problems of at most so many tiles; None for the operation's own choice. `takes`: the features that
        problems may have, as `Variant.takes`.
        """

    def axes(self, most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]) -> Axes | None:
        """What a campaign meets on purpose, arguments as of `cases`; None: it has what `cases` happens to draw.

        `checks` may name `property.SANITIZER`, for small cases.
        """
        return None

    def leaves_regime(self, case: Case) -> bool:
        """Whether the case's inputs may lie outside of what its regime is about, as by edits.

        A variant that fails in some regimes (`Variant.fails_in`) is not asked about such a case in any other.
        """
        return False

    @property
    def properties(self) -> Mapping[str, Property]:
        """What must hold besides the answer itself, by name."""
        return {}

    def simpler(self, case: Case, builds: Builds) -> Iterator[Case]:
        """Cases that are smaller in one respect, the most worthwhile first; some may be no smaller at all."""
        return iter(())

    @abstractmethod
    def size(self, case: Case, builds: Builds) -> tuple[object, ...]:
        """Smaller is easier to look at: compared field by field."""

    def enlarged(self, case: Case, builds: Builds) -> Case:
        """The same inputs in a problem where the pattern of a mistake has room to show."""
        return case

    def probed_axes(self, case: Case, builds: Builds) -> Sequence[ProbedAxis]:
        """The lengths of a failing case that are varied to see at which of them it fails, the most telling first."""
        return ()

    def peculiarities(self, case: Case, tiles: Sequence[int]) -> list[str]:
        """What a case has beyond the plainest one, in words."""
        return []

    def known_mistakes(
        self, problem: Any, inputs: Arrays, tile_keys: int | None
    ) -> Iterator[tuple[str, Mapping[str, Float64Array]]]:
        """Wrong answers in float64 that mistakes are known to give, whole, by output, each with a name.

        The name fits behind `equals`, such as `the answer without the last key`. `tile_keys`: keys per tile, where the
        variant declares them. Worked out one by one, when they are asked for.
        """
        return iter(())

    def hints(self, problem: Any, output: str) -> Hints:
        """What wrong answers of `output` are known to look like."""
        return Hints()

    # What other studies need.

    def parts(self, problem: Any, whole_flops: float) -> tuple[Part, ...]:
        """Where to check an answer that takes more than `whole_flops` to work out; else the whole of it."""
        return (WHOLE,)

    @property
    def settings(self) -> tuple[str, ...]:
        """The fields of a problem that do not follow from the shapes and the dtype of its inputs."""
        return ()

    @property
    def further_inputs(self) -> Mapping[str, tuple[str, Any]]:
        """Inputs that only some problems have, and the field and value by which a problem has one."""
        return {}

    def problem_of_shapes(self, shapes: Mapping[str, tuple[int, ...]], dtype: str, said: Mapping[str, Any]) -> Any:
        """The problem that arrays of these shapes pose, by input; `said` sets `settings`.

        Raises `UsageError` or `ProblemError` where the shapes do not fit together.
        """
        raise UsageError(f"'run' cannot tell a problem of {self.name} from its arrays")

    def problem_of_arrays(self, arrays: Arrays, dtype: str, said: Mapping[str, Any]) -> Any:
        """The same of arrays whose content matters, too, such as lengths: to be looked at where there are such.

        Raises `UsageError` or `ProblemError` where they do not fit together, or point to what is not there.
        """
        return self.problem_of_shapes({name: array.shape for name, array in arrays.items()}, dtype, said)

    @property
    def lengths(self) -> Mapping[str, tuple[str, ...]]:
        """Options that set several fields at once where these are not given, such as seq_len for q_len and kv_len."""
        return {}

    def field_in_words(self, problem: Any, name: str) -> list[str]:
        """One field of a problem for a headline, or nothing where it says nothing."""
        value = getattr(problem, name)
        return [value if name == "dtype" else f"{name} {value}"]

    def require_sweepable(self, problem: Any) -> None:
        """Raise `UsageError` where a problem is so large that even closed forms would not end soon."""
        return

    def ordered_sums(
        self, problem: Any, run: Callable[[Any, Arrays], Arrays], known: Mapping[str, Sequence[SummationTree]]
    ) -> Sequence[OrderedSum]:
        """The sums of a kernel whose order shows, given what runs it. Orders `known`, by sum, are tried first.

        Raises `UsageError` where this operation, or this problem, has none.
        """
        raise UsageError(f"--order asks for the order of sums, and {self.name} has none that it could ask for")

    def io_bound(self, problem: Any, on_chip_bytes: int) -> IoBound | None:
        """How few bytes the problem can be solved with, given so much on-chip memory; None where nothing is known."""
        return None

    def libraries(self) -> Mapping[str, Callable[[Any], Any]]:
        """Other people's kernels, by name: each makes a contender of a GPU's stage (`gpu.stage.GpuStage`)."""
        return {}

    def libraries_in_words(self, torch: str) -> str | None:
        """What these rows are, where PyTorch has that version: a note below their times. None where there are none."""
        return None

    @property
    def flops_in_words(self) -> str:
        """What a problem's `flops` are of."""
        return "the operations that the problem counts"


def operation_names() -> tuple[str, ...]:
    """Every operation, the default one first."""
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None and spec.submodule_search_locations is not None
    found = pkgutil.iter_modules(spec.submodule_search_locations)
    names = [module.name.replace("_", "-") for module in found if module.ispkg]
    return tuple(sorted(names, key=lambda name: (name != DEFAULT_OPERATION, name)))


@functools.cache
def operation_named(name: str) -> Operation:
    """The operation of that name. Raises `UsageError` with the nearest one."""
    names = operation_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise UsageError(f"no operation {name!r}{hint} There are {', '.join(names)}")
    module = importlib.import_module(f"{PACKAGE}.{name.replace('-', '_')}.operation")
    operation: Operation = module.OPERATION
    return operation


def operation_of(problem: BaseProblem) -> Operation:
    """The operation that a problem is one of."""
    return operation_named(problem.operation)


def draw_inputs(problem: BaseProblem, regime: str = "normal", seed: int = 0) -> dict[str, np.ndarray]:
    """An array per input of `problem`, as `regime.draw` makes them. Raises `UsageError`."""
    from harness.model.regime import draw

    operation = operation_of(problem)
    return draw(operation.regimes, problem, regime, seed, operation.derived_inputs(problem))


def draw_input_parts(
    problem: BaseProblem, regime: str = "normal", seed: int = 0
) -> dict[str, np.ndarray | DrawnTensor]:
    """The same, but of large inputs nothing is drawn before it is asked for: see `regime.draw_parts`."""
    from harness.model.regime import draw_parts

    operation = operation_of(problem)
    return draw_parts(operation.regimes, problem, regime, seed, operation.derived_inputs(problem))
