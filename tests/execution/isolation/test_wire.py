"""Arguments of a launch between the judge and a planner: what comes out is what went in."""

from __future__ import annotations

import json

import numpy as np
import pytest

from harness.execution.isolation.replies import Malformed
from harness.execution.isolation.wire import argument_from_json, argument_to_json
from harness.model.plan import Reshaped
from harness.model.tensor_map import TensorMap
from harness.support.errors import PlanError

MAP = TensorMap("Q", (128, 300, 2), (256, 76800), (64, 128, 1), "bfloat16", 128)


def put_by(argument: object) -> int:
    raise AssertionError(argument)


def test_a_tensor_map_and_its_encoding_come_as_they_went() -> None:
    """A plan has the one, a launch on the emulator the other."""
    encoded = np.void(bytes(range(128)))
    for argument in (MAP, encoded, np.float32(0.125), "K", ("K", (np.int32(1), ())), Reshaped("K", (2, 3))):
        found = argument_from_json(json.loads(json.dumps(argument_to_json(argument, put_by))))
        assert type(found) is type(argument) and found == argument


def test_tuples_without_end_are_refused() -> None:
    said = argument_to_json((), put_by)
    for _ in range(1000):
        said = {"tuple": [said]}
    with pytest.raises(Malformed):
        argument_from_json(said)


def test_a_tensor_map_that_is_none_is_refused() -> None:
    said = json.loads(json.dumps(argument_to_json(MAP, put_by)))
    with pytest.raises(Malformed):
        argument_from_json({"tensor_map": said["tensor_map"] | {"extents": [1.5, 2, 3]}})
    with pytest.raises(PlanError, match="box"):
        argument_from_json({"tensor_map": said["tensor_map"] | {"box": [64, 512, 1]}})
