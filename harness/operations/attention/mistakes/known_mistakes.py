"""The wrong answers of mistakes that attention kernels are known to make, to be recognised in what a kernel stored."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from harness.model.array_types import Float64Array, Mask
from harness.model.operation import Hints, Part, TrivialAnswer
from harness.operations.attention.layout import DENSE
from harness.operations.attention.masks import NO_MASK
from harness.operations.attention.masks.causal import Causal
from harness.operations.attention.oracle import Block, answer_of, attention, blocks_of, over_blocks, shapes_of
from harness.operations.attention.problem import Problem
from harness.operations.attention.sizes import default_scale

Answers = Iterator[tuple[str, Mapping[str, Float64Array]]]


def known_mistakes(problem: Problem, inputs: Mapping[str, np.ndarray], tile_keys: int | None = None) -> Answers:
    """O and lse in float64 of each mistake, whole, with its name, such as `the answer without the last key`.

    `tile_keys`: keys per tile, where the variant declares them.
    """
    yield from _without_some_keys(problem, inputs, tile_keys)
    yield from _with_other_steps(problem, inputs)
    for name, other in _other_problems(problem):
        yield f"the answer {name}", attention(other, inputs)
    for term in problem.terms:
        for name, mistaken in term.mistakes(problem, inputs):
            yield f"the answer with {name}", attention(problem, {**inputs, **mistaken})
    ungrouped = dataclasses.replace(problem, kv_heads=problem.heads, layout=DENSE)
    for name, heads in _other_heads(problem):
        of_heads = {array: inputs[array][:, heads] for array in ("K", "V")}
        yield f"the answer with K and V of {name}", attention(ungrouped, {**inputs, **of_heads})


def _without_some_keys(problem: Problem, inputs: Mapping[str, np.ndarray], tile_keys: int | None) -> Answers:
    keys = problem.kv_len
    hidden: dict[str, Callable[[Mask], Mask | slice]] = {
        "the last key": lambda visible: slice(keys - 1, keys),
        "the first key": lambda visible: slice(0, 1),
    }
    if problem.mask != NO_MASK:
        hidden["the last key that each row sees"] = _last_seen
        hidden["the first key that each row sees"] = _first_seen
    if tile_keys is not None and tile_keys < keys:
        hidden["the last tile of keys"] = lambda visible: slice((keys - 1) // tile_keys * tile_keys, keys)
        hidden["the first tile of keys"] = lambda visible: slice(0, tile_keys)
    for name, hide in hidden.items():
        yield f"the answer without {name}", _answered(problem, inputs, functools.partial(_hiding, keys=keys, hide=hide))
    if problem.mask != NO_MASK:
        unmasked = iter(blocks_of(dataclasses.replace(problem, mask=NO_MASK), inputs))
        yield (
            "the answer with one key more than the mask lets each row see",
            _answered(problem, inputs, lambda block: _seeing_one_more(block, next(unmasked), keys)),
        )


def _with_other_steps(problem: Problem, inputs: Mapping[str, np.ndarray]) -> Answers:
    """Mistakes in a step that leave out none of the problem's features."""
    causal = next((part for part in problem.mask.parts if isinstance(part, Causal)), None)
    if causal is not None and problem.q_len != problem.kv_len:
        others = dataclasses.replace(problem, mask=problem.mask.without(causal.kind))
        name = "the answer with the causal mask aligned top-left instead of bottom-right"
        yield name, _answered(others, inputs, functools.partial(_aligned_top_left, keys=problem.kv_len))
    if problem.v_head_dim is None:
        exchanged = {**inputs, "K": inputs["V"], "V": inputs["K"]}
        yield "the answer with K and V exchanged", attention(problem, exchanged)
    overflowing = _answered(problem, inputs, lambda block: block, _without_subtraction)
    if not np.isfinite(overflowing["O"]).all():
        yield "the answer without subtracting the maximum, whose exponentials overflow", overflowing


def _aligned_top_left(block: Block, keys: int) -> Block:
    """Row i loses the keys behind key i; `block` is that of a problem without a causal mask."""
    rows = np.arange(block.where[2].start or 0, (block.where[2].start or 0) + block.q.shape[2])
    visible = np.array(np.broadcast_to(block.visible, (*block.visible.shape[:2], len(rows), block.visible.shape[-1])))
    visible[..., :keys] &= np.arange(keys) <= rows[:, None]
    return dataclasses.replace(block, visible=visible, scores=np.where(visible, block.scores, -np.inf))


def _without_subtraction(block: Block) -> dict[str, Float64Array]:
    """O and lse with exponentials in float32 that do not have the maximum subtracted."""
    with np.errstate(all="ignore"):
        weights = np.exp(block.scores.astype(np.float32))
        sums = block.after_dropout(weights).astype(np.float32) @ block.v.astype(np.float32)
        denominator = weights.sum(axis=-1)
        O = np.where(block.without_keys[..., None], 0.0, sums / denominator[..., None])
        return {"O": O.astype(np.float64), "lse": np.log(denominator).astype(np.float64)}


def _answered(
    problem: Problem,
    inputs: Mapping[str, np.ndarray],
    mistake: Callable[[Block], Block],
    answer_of_block: Callable[[Block], Mapping[str, Float64Array]] = answer_of,
) -> dict[str, Float64Array]:
    O, lse = np.empty(problem.o_shape), np.empty(problem.lse_shape)
    for block in blocks_of(problem, inputs):
        answer = answer_of_block(mistake(block))
        O[block.where], lse[block.where] = answer["O"], answer["lse"]
    return {"O": O, "lse": lse}


def _hiding(block: Block, keys: int, hide: Callable[[Mask], Mask | slice]) -> Block:
    """The block without the keys that `hide` chooses, given which ones each row sees; a sink stays."""
    visible = np.array(block.visible)
    visible[..., :keys][..., hide(visible[..., :keys])] = False
    return dataclasses.replace(block, visible=visible, scores=np.where(visible, block.scores, -np.inf))


def _first_seen(visible: Mask) -> Mask:
    first: Mask = visible & (np.cumsum(visible, axis=-1) == 1)
    return first


def _last_seen(visible: Mask) -> Mask:
    last: Mask = visible & (np.cumsum(visible[..., ::-1], axis=-1)[..., ::-1] == 1)
    return last


def _seeing_one_more(block: Block, unmasked: Block, keys: int) -> Block:
    """Each row sees one key behind the last that it may see; `unmasked` has the same scores without a mask."""
    visible = np.array(block.visible)
    seen = visible[..., :keys]
    seen[..., 1:] |= _last_seen(seen)[..., :-1]
    return dataclasses.replace(block, visible=visible, scores=np.where(visible, unmasked.scores, -np.inf))


def _other_problems(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """The problem without one of its features."""
    left_out = {
        "without the mask": {"mask": NO_MASK} if problem.mask != NO_MASK else {},
        **{f"without {term.label}": {term.field: term.off} for term in problem.terms},
        "without dropout": {"dropout": 0.0, "dropout_seed": 0} if problem.dropout else {},
        "with a scale of 1": {"scale": 1.0} if problem.tau != 1.0 else {},
        "with a scale of 1 / sqrt(v_head_dim)": _scale_of_values(problem),
    }
    for name, fields in left_out.items():
        if fields:
            yield name, dataclasses.replace(problem, **fields)


def _scale_of_values(problem: Problem) -> dict[str, float]:
    """The scale that the rows of V would give by default; none if it is the problem's."""
    scale = default_scale(problem.v_width)
    return {"scale": scale} if problem.v_head_dim is not None and problem.tau != scale else {}


def _other_heads(problem: Problem) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
    """Key/value heads that are mistaken for the right ones, and which of them each query head reads then."""
    count, heads = problem.kv_heads_count, np.arange(problem.heads)
    if count > 1:
        yield "the next key/value head", (heads // problem.group + 1) % count
        yield "the previous key/value head", (heads // problem.group - 1) % count
        yield "the first key/value head", np.zeros_like(heads)
        if problem.group > 1:
            yield "key/value head h % kv_heads for query head h", heads % count


def forward_hints(tau: float, output: str, kept: float | None = None) -> Hints:
    """What wrong values of `output`, O or lse, of softmax(tau Q K^T) V are known to look like.

    `kept`: the share of weights that dropout leaves; None where there is no dropout.
    """
    factors = {
        1 / math.log(2): "1 / ln 2: a logarithm to base 2",
        math.log(2): "ln 2: a base of 2 where it should be e, or the other way round",
        -1.0: "the sign is wrong",
    }
    if output != "lse":
        if kept is not None:
            factors[kept] = "1 - P: what dropout leaves is not multiplied by 1 / (1 - P)"
        return Hints(factors)
    if tau not in (0.0, 1.0):
        factors |= {1 / tau: "the scale is missing", tau: "the scale is applied twice"}
    return Hints(factors, {math.log(2): "ln 2: counted twice, or half"})


def trivial_answers(problem: Problem, inputs: Mapping[str, np.ndarray]) -> dict[str, TrivialAnswer]:
    """O of each trivial mistake, of a part's shape."""
    mistakes = {"the mean of V": _equal_weights, "attention over half of the keys": _half_of_the_keys}
    return {name: functools.partial(_answer, problem, inputs, mistake) for name, mistake in mistakes.items()}


def _answer(
    problem: Problem, inputs: Mapping[str, np.ndarray], mistake: Callable[[Block], Block], part: Part
) -> dict[str, Float64Array]:
    O = np.empty(shapes_of(problem, part)[0])

    def answer_block(block: Block) -> None:
        O[block.where] = answer_of(mistake(block))["O"]

    over_blocks(problem, inputs, answer_block, part)
    return {"O": O}


def _equal_weights(block: Block) -> Block:
    """All keys that a row sees have the same weight."""
    return dataclasses.replace(block, scores=np.where(block.visible, 0.0, -np.inf))


def _half_of_the_keys(block: Block) -> Block:
    """Each row loses the second half of the keys that it sees; a sink stays."""
    sink = block.rule.sinks is not None
    rank = np.cumsum(block.visible, axis=-1)
    keys: npt.NDArray[np.intp] = rank[..., -1:] - sink
    visible = block.visible & (2 * rank <= keys + 1)
    if sink:
        visible[..., -1] = block.visible[..., -1]
    return dataclasses.replace(block, visible=visible, scores=np.where(visible, block.scores, -np.inf))
