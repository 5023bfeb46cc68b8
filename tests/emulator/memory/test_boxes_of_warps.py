"""A box that all lanes of a warp store: once if it is the same one, and once for each place otherwise."""

from __future__ import annotations

import numpy as np
import pytest

from harness import Device
from tests.emulator.box_movers import MOVE

LANES, ROWS, COLUMNS = 32, 8, 16


@pytest.mark.parametrize(("step", "boxes"), [(0, 1), (ROWS, LANES)])
def test_a_warp_stores_a_box_once(step: int, boxes: int) -> None:
    """As ptxas compiles it: UTMASTG, once for a warp."""
    device = Device()
    x = np.arange(LANES * ROWS * COLUMNS, dtype=np.float32).reshape(-1, COLUMNS)
    source, target = device.array(x, name="source"), device.array(np.zeros_like(x), name="target")
    maps = [device.tensor_map(each, (COLUMNS, ROWS)) for each in (source, target)]
    result = device.launch(device.module(MOVE)["move"], 1, LANES, (*maps, np.uint32(step)))
    expected = np.zeros_like(x)
    expected[: boxes * ROWS] = np.tile(x[:ROWS], (boxes, 1))
    assert np.array_equal(target.numpy(), expected)
    (stored,) = (site for site in result.traffic if site.buffer == "target")
    box_bytes = ROWS * COLUMNS * 4
    assert (stored.requests, stored.requested_bytes) == (boxes, boxes * box_bytes)
