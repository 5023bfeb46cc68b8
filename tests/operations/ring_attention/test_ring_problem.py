"""Which rows a device holds, what they see of another device's keys, and which problems there are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from harness.model.operation import draw_inputs
from harness.operations._across_devices.order import ORDERS, STRIPED, ZIGZAG, chunks_per_device, rows_of_devices
from harness.operations.ring_attention.problem import RingProblem
from harness.support.errors import ProblemError

SHAPES = [(devices, length) for devices in range(1, 9) for length in (2 * devices, 2 * devices + 1, 37, 64)]


def ring(devices: int, length: int, order: str, **more: object) -> RingProblem:
    return RingProblem(q_len=length, kv_len=length, devices=devices, row_order=order, **more)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("devices", "length"), SHAPES)
def test_each_row_is_on_one_device_and_none_has_many_more_than_another(order: str, devices: int, length: int):
    of_devices = rows_of_devices(order, devices, length)
    rows = [row for chunks in of_devices for chunk in chunks for row in chunk]
    assert sorted(rows) == list(range(length))
    counts = [sum(map(len, chunks)) for chunks in of_devices]
    assert len(counts) == devices and max(counts) - min(counts) <= chunks_per_device(order)
    assert all(list(chunk) == sorted(chunk) for chunks in of_devices for chunk in chunks)


def test_zigzag_gives_a_device_as_much_from_the_end_as_from_the_beginning():
    assert rows_of_devices(ZIGZAG, 2, 8) == ((range(0, 2), range(6, 8)), (range(2, 4), range(4, 6)))
    assert rows_of_devices(STRIPED, 3, 8)[1] == (range(1, 8, 3),)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("devices", "length"), SHAPES)
def test_a_block_shows_each_row_the_keys_that_it_sees_in_the_sequence(order: str, devices: int, length: int):
    problem = ring(devices, length, order, mask="causal", heads=1)
    chunks = list(itertools.chain(*problem.chunks))
    seen = np.zeros((length, length), bool)
    for rows, keys in itertools.product(chunks, chunks):
        block = problem.block(rows, keys)
        if block is None:
            continue
        visible = block.mask.visible(
            np.arange(block.q_len)[:, None], np.arange(block.kv_len), block.q_len, block.kv_len
        )
        first, end = block.mask.span(np.arange(block.q_len), block.q_len, block.kv_len)
        assert visible.any() and np.array_equal(visible.sum(axis=1), np.maximum(end - first, 0))
        seen[np.ix_(rows.rows, keys.rows)] = visible
    assert np.array_equal(seen, np.tril(np.ones((length, length), bool)))


@pytest.mark.parametrize("order", ORDERS)
def test_split_inputs_are_rows_of_the_whole_and_join_to_it_again(order: str):
    problem = ring(3, 23, order, batch=2, heads=4, kv_heads=2, head_dim=3)
    inputs, sharing = draw_inputs(problem), problem.sharing
    assert sharing is not None
    parts = sharing.split(inputs)
    shapes = {tensor.name: tensor.shape for tensor in sharing.held.inputs}
    assert {name: part.shape for name, part in parts.items()} == shapes
    chunk = problem.chunks[1][-1]
    assert np.array_equal(parts[chunk.of("K")], inputs["K"][:, :, list(chunk.rows)])
    joined = sharing.join(parts)
    assert all(np.array_equal(joined[name], inputs[name]) for name in inputs)
    del parts[chunk.of("K")]
    missing = sharing.join(parts)["K"]
    assert missing.shape == inputs["K"].shape and not missing[:, :, list(chunk.rows)].any()


def test_work_of_causal_attention_is_even_in_two_of_the_orders():
    def pairs(order: str) -> list[int]:
        rows = (itertools.chain(*chunks) for chunks in rows_of_devices(order, 4, 64))
        return [sum(row + 1 for row in of_device) for of_device in rows]

    work = {order: pairs(order) for order in ORDERS}
    assert max(work["contiguous"]) > 6 * min(work["contiguous"])
    assert max(work["striped"]) < 1.2 * min(work["striped"])
    assert max(work["zigzag"]) == min(work["zigzag"])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"devices": 0}, "devices is 0; it has to be a whole number from 1 to 64"),
        ({"devices": True}, "devices is True"),
        ({"devices": 65}, "devices is 65"),
        ({"row_order": "zigzak"}, "no order 'zigzak'; did you mean 'zigzag'"),
        ({"q_len": 64}, "q_len is 64 and kv_len 256; .* choose both with seq_len"),
        ({"mask": "window:3"}, "takes none or causal"),
        ({"mask": "causal+window:3"}, "takes none or causal"),
        ({"q_len": 7, "kv_len": 7, "row_order": "zigzag"}, "4 devices in zigzag order need at least 8 rows"),
        ({"q_len": 3, "kv_len": 3}, "need at least 4 rows"),
    ],
)
def test_what_is_no_problem_says_why(fields: dict[str, object], words: str):
    with pytest.raises(ProblemError, match=words):
        RingProblem(**fields)


def test_a_problem_is_made_of_its_fields_again():
    problem = ring(3, 40, ZIGZAG, mask="causal", heads=4, kv_heads=2, dtype="float16", scale=0.5)
    assert RingProblem.from_fields(problem.to_fields()) == problem
    assert RingProblem.from_fields(problem.to_short_fields()) == problem
    assert RingProblem.from_fields({"causal": True}) == RingProblem(mask="causal")
    with pytest.raises(ProblemError, match="causal is 1"):
        RingProblem.from_fields({"causal": 1})


def test_a_device_may_hold_its_rows_and_two_visiting_blocks():
    problem = ring(4, 64, "contiguous", heads=2, kv_heads=1, head_dim=8, dtype="float16")
    block = 2 * 16 * 8 * 2
    assert problem.kv_bytes(0) == block and problem.most_received_bytes == 2 * block
    rows = 2 * 16  # of both heads
    own = rows * 8 * 2 + block + rows * (8 * 2 + 4)
    assert problem.most_device_bytes(0) == own + 2 * block + rows * (8 * 2 + 4) + rows * (8 * 4 + 4)
