"""What campaigns of tree attention meet: attention's own cases, with the keys over 1 to 8 devices."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.model.cases.axes import Choice
from harness.model.cases.build import Builds
from harness.model.cases.case import Case
from harness.operations._across_devices.cases import (
    DEVICE_COUNTS,
    DEVICES,
    DRAWN_COUNTS,
    PLAIN_DEVICES,
    DividedAxes,
    DividedBuild,
    DividedCases,
    taken,
)
from harness.operations.attention.masks import NO_MASK, parse_mask
from harness.operations.attention.sizes import Sizes
from harness.operations.tree_attention.problem import TreeProblem
from harness.support.override import override

if TYPE_CHECKING:
    from hypothesis import strategies as st


@dataclass(frozen=True)
class TreeBuild(DividedBuild):
    """What attention's kernels have compiled in, for the keys of a device."""

    @property
    @override
    def plain_problem(self) -> TreeProblem:
        return tree(self.forward.plain_problem, PLAIN_DEVICES)


def tree(problem: Any, devices: int) -> TreeProblem:
    """Return the problem of tree attention like one of attention, with at least a key per device.

    Under a causal mask, it has at most as many rows as keys.
    """
    fields = {field.name: getattr(problem, field.name) for field in dataclasses.fields(Sizes)}
    mask, length = (parse_mask("causal") if problem.causal else NO_MASK), max(problem.kv_len, devices)
    rows = min(problem.q_len, length) if problem.causal else problem.q_len
    return TreeProblem(**{**fields, "q_len": rows, "kv_len": length, "mask": mask}, devices=devices)


class TreeAxes(DividedAxes):
    """Attention's axes, with the number of devices."""

    _cases: TreeCases

    @override
    def case(self, build: TreeBuild, choice: Choice, rng: random.Random, brief: bool = False) -> Case:
        plain = {axis: name for axis, name in choice.items() if axis != DEVICES}
        case = self.inner.case(build.forward, plain, rng, brief)
        return self._cases.tree_case(case, rng.choice(DEVICE_COUNTS[choice[DEVICES]]))


@dataclass(frozen=True, eq=False)
class TreeCases(DividedCases):
    """Cases of tree attention, made of those of attention."""

    @property
    @override
    def problem_class(self) -> type[TreeProblem]:
        return TreeProblem

    def tree_case(self, case: Case, devices: int) -> Case:
        """Return a case like one of attention, without the edits that lie outside of its inputs."""
        return case.with_problem(tree(case.problem, devices))

    @override
    def divided(self, problem: Any, like: TreeProblem) -> TreeProblem:  # type: ignore[override]
        return tree(problem, like.devices)

    @override
    def simpler(self, case: Case, builds: Builds) -> Iterator[Case]:
        """Yield cases with fewer devices, then what makes attention's case smaller."""
        for devices in range(1, case.problem.devices):
            yield self.tree_case(self.unwrapped(case), devices)
        yield from super().simpler(case, builds)

    @override
    def size(self, case: Case, builds: Builds) -> tuple[object, ...]:
        """Return the number of devices, then the size of attention's case."""
        return case.problem.devices, *super().size(case, builds)

    @override
    def axes(self, most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]) -> TreeAxes:
        return TreeAxes(self, most_tiles, checks, takes)

    @override
    def cases(
        self, builds: Sequence[TreeBuild], most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]
    ) -> st.SearchStrategy[Case]:
        """Return cases of these builds, as attention draws them, over 1 to 8 devices."""
        from hypothesis import strategies as st  # optional

        inner = self.inner.cases([build.forward for build in builds], most_tiles, checks, taken(takes))
        return st.builds(self.tree_case, inner, st.sampled_from(DRAWN_COUNTS))
