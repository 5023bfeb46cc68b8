"""What campaigns of latent attention meet: paged attention's own cases, with one cache for all heads."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.model.cases.axes import Axes, Choice, Value, WrappedAxes
from harness.model.cases.case import Case, Edit
from harness.model.cases.wrapped_cases import WrappedCases
from harness.model.operation import Operation, operation_named
from harness.model.problem import BaseProblem
from harness.operations.mla_decode.problem import MlaProblem
from harness.operations.paged_attention.axes import HEADS
from harness.operations.paged_attention.build import PagedBuild
from harness.operations.paged_attention.problem import PagedProblem
from harness.support.override import override

if TYPE_CHECKING:
    from hypothesis import strategies as st

PLAIN_LENGTHS = (40, 7)
SHARED_FIELDS = tuple(
    field.name for field in dataclasses.fields(MlaProblem) if field.name not in ("latent_dim", "rope_dim", "in_use")
)
"""Fields that both problems have."""
GROUP, GROUPS = "a group", ("several", "groups")
"""Class of few heads, and classes that differ from it only in heads of K and V."""


@dataclass(frozen=True)
class MlaBuild(PagedBuild):
    """What kernels have compiled in; `head_dim` counts all elements of a row of the cache."""

    @property
    def forward(self) -> PagedBuild:
        """Paged attention's build with rows as long."""
        return PagedBuild(self.dtype, self.head_dim, self.page_size, self.tile_keys, self.tile)

    @property
    @override
    def plain_problem(self) -> MlaProblem:  # type: ignore[override]
        rope = rope_of(self.head_dim)
        return MlaProblem(
            lengths=PLAIN_LENGTHS, heads=2, latent_dim=self.head_dim - rope, rope_dim=rope, dtype=self.dtype,
            page_size=self.page_size,
        )  # fmt: skip

    @override
    def of_problem(self, problem: Any) -> MlaBuild:
        return dataclasses.replace(self, dtype=problem.dtype, head_dim=problem.head_dim, page_size=problem.page_size)

    @property
    @override
    def fallbacks(self) -> Sequence[MlaBuild]:
        """Rows of 128 + 64 elements, and of 512 + 64, in the same dtype or in 16 bits, for kernels on tensor cores."""
        dtypes = dict.fromkeys((self.dtype, "bfloat16" if self.dtype == "float32" else self.dtype))
        widths = dict.fromkeys((self.head_dim, 192, 576))
        found = (dataclasses.replace(self, dtype=dtype, head_dim=width) for width in widths for dtype in dtypes)
        return [build for build in found if build != self]


def rope_of(head_dim: int) -> int:
    """Return the elements of drawn rows of this length that are no values: 64 of 192 or more, else 16."""
    return 64 if head_dim >= 192 and head_dim % 64 == 0 else 16


FIRST = (MlaBuild("float32", 32, 16), MlaBuild("float16", 48, 32))
"""float32 first: small mistakes cannot hide behind rounding there. Rows are short, so that a pool may have many."""
OTHERS = (
    MlaBuild("bfloat16", 80, 256),
    MlaBuild("bfloat16", 576, 64),
    MlaBuild("float16", 192, 64),
    MlaBuild("float32", 80, 48),
    MlaBuild("float16", 144, 16),
    MlaBuild("float32", 576, 64),
    MlaBuild("float16", 576, 64),
    MlaBuild("bfloat16", 48, 80),
)
OTHER_PAGES = (16, 32, 48, 64, 128)


def builds_of(seed: int) -> tuple[MlaBuild, ...]:
    """Return the builds of a campaign, the plainest first; another seed has other pages and another order."""
    if seed == 0:
        return FIRST + OTHERS
    rng = random.Random(seed)
    rest = rng.sample(OTHERS, len(OTHERS))
    return (*FIRST, *(dataclasses.replace(each, page_size=rng.choice(OTHER_PAGES)) for each in rest))


def _mla(case: Case, rope_dim: int) -> Case:
    """Return the case that is like one of paged attention, with one cache; edits of K and V become edits of C."""
    p: PagedProblem = case.problem
    fields = {**p.to_fields(), "far": p.far}
    problem = MlaProblem.from_fields(
        {name: fields[name] for name in SHARED_FIELDS}
        | {"latent_dim": p.head_dim - rope_dim, "rope_dim": rope_dim, "scale": p.scale}
    )
    edits = tuple(_edit_of_cache(edit, problem) if edit.array in "KV" else edit for edit in case.edits)
    return _with_edits(case, problem, edits)


def _with_edits(case: Case, problem: BaseProblem, edits: Sequence[Edit]) -> Case:
    """Return the case with another problem and those of these edits that lie within its inputs."""
    shapes = {tensor.name: tensor.shape for tensor in problem.inputs}
    fits = tuple(edit for edit in edits if all(i < extent for i, extent in zip(edit.index, shapes[edit.array])))
    return dataclasses.replace(case, problem=problem, edits=fits)


def _edit_of_cache(edit: Edit, problem: MlaProblem) -> Edit:
    page, _, row, column = edit.index
    return dataclasses.replace(
        edit, array="C", index=(page, row, column if edit.array == "K" else column % problem.latent_dim)
    )


class MlaAxes(WrappedAxes):
    """Paged attention's axes, without classes of heads that differ in heads of K and V."""

    @property
    @override
    def values(self) -> Mapping[str, Sequence[Value]]:
        return {
            axis: tuple(value for value in values if axis != HEADS or value.name not in GROUPS)
            for axis, values in self.inner.values.items()
        }

    @property
    @override
    def common(self) -> Sequence[Choice]:
        return [{**choice, HEADS: GROUP} if choice.get(HEADS) in GROUPS else choice for choice in super().common]

    @property
    @override
    def long(self) -> Sequence[Choice]:
        return self.inner.long

    @override
    def case(self, build: MlaBuild, choice: Choice, rng: random.Random, brief: bool = False) -> Case:
        return _mla(self.inner.case(build.forward, choice, rng, brief), rope_of(build.head_dim))

    @override
    def far_cases(self, builds: Sequence[MlaBuild], seed: int) -> Sequence[Case]:
        forward = [build.forward for build in builds]
        return [_mla(case, rope_of(builds[0].head_dim)) for case in self.inner.far_cases(forward, seed)]


class MlaCases(WrappedCases):
    """Cases of latent attention, made of those of paged attention."""

    @property
    def inner(self) -> Operation:  # type: ignore[override]
        """Paged attention."""
        return operation_named("paged-attention")

    @override
    def wrapped(self, case: Case, like: Case) -> Case:
        width = case.problem.head_dim
        return _mla(case, like.problem.rope_dim if width == like.problem.head_dim else rope_of(width))

    @override
    def unwrapped(self, case: Case) -> Case:
        p: MlaProblem = case.problem
        fields = {**p.to_fields(), "far": p.far}
        problem = PagedProblem.from_fields(
            {name: fields[name] for name in SHARED_FIELDS} | {"kv_heads": 1, "head_dim": p.head_dim, "scale": p.scale}
        )
        edits = tuple(
            dataclasses.replace(edit, array="K", index=(edit.index[0], 0, *edit.index[1:]))
            if edit.array == "C"
            else edit
            for edit in case.edits
        )
        return _with_edits(case, problem, edits)

    def axes(self, most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]) -> Axes:
        """Return the axes of a campaign; arguments as of `Operation.axes`."""
        return MlaAxes(self.inner.axes(most_tiles, checks, takes))

    def cases(
        self, builds: Sequence[MlaBuild], most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]
    ) -> st.SearchStrategy[Case]:
        """Return cases of these builds; arguments as of `Operation.cases`."""
        inner = self.inner.cases([build.forward for build in builds], most_tiles, checks, takes)
        return inner.map(lambda case: _mla(case, rope_of(case.problem.head_dim)))

    def peculiarities(self, case: Case, tiles: Sequence[int], assumed_tile: Sequence[int] = ()) -> list[str]:
        """Describe what a case has beyond the plainest."""
        p: MlaProblem = case.problem
        found = self.inner.peculiarities(self.unwrapped(case), tiles, assumed_tile)
        return [f"{p.heads} heads" if " over 1 of K and V" in each else each for each in found]
