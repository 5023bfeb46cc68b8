"""Hypothesis strategies for gradients: attention's own cases, each with a gradient of O."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hypothesis import strategies as st

from harness.model.cases.case import Case
from harness.model.operation import operation_named
from harness.operations.attention_backward.cases import BackwardBuild, backward_case, own_regimes


def cases(
    builds: Sequence[BackwardBuild], most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]
) -> st.SearchStrategy[Case]:
    """Cases of these builds: three in four as attention draws them or with one of the regimes of gradients."""
    forward = operation_named("attention").cases([build.forward for build in builds], most_tiles, checks, takes)
    return st.builds(_with_gradient, forward, st.sampled_from((None, None, None, *own_regimes())))


def _with_gradient(case: Case, regime: str | None) -> Case:
    return backward_case(case if regime is None else dataclasses.replace(case, regime=regime))
