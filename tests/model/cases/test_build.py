"""What a failing case is simplified to runs on a build that its campaign knows."""

from __future__ import annotations

import dataclasses

import pytest

from harness.model.cases.build import Builds
from harness.model.cases.case import Case
from harness.model.operation import operation_named
from harness.operations.attention.problem import COMPILED_FEATURES, LAYOUT

FEATURES = (*COMPILED_FEATURES, LAYOUT)


@pytest.mark.parametrize("operation", ["attention", "attention-backward", "paged-attention", "softmax"])
def test_a_case_that_loses_its_features_has_a_build(operation: str) -> None:
    for build in operation_named(operation).builds:
        for each in (build.with_features(FEATURES, place) for place in range(len(FEATURES) + 2)):
            builds = Builds((each,))
            plain = each.plain_problem
            without = {field.name: field.default for field in dataclasses.fields(plain)}
            for feature in FEATURES:
                if getattr(plain, feature, None):
                    case = Case(dataclasses.replace(plain, **{feature: without[feature]}))
                    assert builds.of(case).key == (case.problem.build_key, None)
