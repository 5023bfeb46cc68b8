"""A failing case made smaller along its own fields, after Hypothesis made its draws simpler.

Hypothesis shrinks what was drawn, one draw or a few at a time. Some smaller problems are far away in draws and near in
what they mean: fewer tiles with another filling of the last one, or with inputs whose maximum rises. Those are tried
here, in an order of what makes a problem easy to look at: tiles first, then heads, batch, lengths, the build, and how
plain the inputs are. What scores and weights become besides is left out before the mask is: it says where not to look,
and each time takes a compilation, which few tiles and heads do not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from harness.model.cases.axes import ProbedAxis
from harness.model.cases.build import Builds
from harness.model.cases.case import Case
from harness.model.spread import in_powers, nearer_than
from harness.operations.attention.bias import BIAS
from harness.operations.attention.cases.build import PLAIN_DROPOUT, AttentionBuild, mask_beside, other_width
from harness.operations.attention.layout import DENSE
from harness.operations.attention.layout import DRAWN as LAYOUTS
from harness.operations.attention.masks import NO_MASK
from harness.operations.attention.masks.causal import Causal
from harness.operations.attention.problem import DROPOUT, LAYOUT, V_HEAD_DIM, Problem
from harness.operations.attention.sizes import default_scale, heads_in_words

RISING = "rising"
"""Inputs under which every further tile matters: tried where fewer tiles hide a mistake."""


FEW = 4
"""Tiles of which every smaller number is tried."""
PLAIN_MASKS = 3
"""How many masks of each kind are tried in place of another."""


FEWEST_KEYS = 16
"""Keys of the shortest problem: as many as a tile of tensor cores."""


def size(case: Case, builds: Builds) -> tuple[object, ...]:
    """How large a case is: tiles first, then heads, batch, mask, the build, and how plain the inputs are."""
    p = case.problem
    row_tiles, key_tiles = builds.of(case).tiles(p)
    return (
        p.far.bit_length(),
        row_tiles * key_tiles,
        max(row_tiles, key_tiles),
        p.heads,
        p.kv_heads_count != p.heads,
        p.batch,
        len(p.mask.parts),
        len(p.mask.text),
        p.mask.text,
        len(p.compiled_features),
        p.layout.gap,
        p.layout.text,
        sum(len(term.axes(p)) for term in p.terms),
        p.scale != default_scale(p.head_dim),
        p.dropout_seed,
        *builds.input_size(case),
        p.q_len + p.kv_len,
        p.q_len,
        case.seed,
    )


def simpler(case: Case, builds: Builds) -> Iterator[Case]:
    """Cases that are smaller in one respect, the most worthwhile first; a few of them are not smaller at all."""
    p = case.problem
    for nearer in nearer_than(p.far):
        yield _changed(case, far=nearer)
    if max(builds.of(case).tiles(p)) > FEW:
        # What takes long is made cheap first.
        if case.check is not None:
            yield dataclasses.replace(case, check=None)
        yield from _fewer_heads(case)
    yield from _fewer_tiles(case, builds.of(case))
    yield from _fewer_heads(case)
    for feature in p.compiled_features:
        yield _with_features(case, [name for name in p.compiled_features if name != feature])
    for term, axes in ((term, term.axes(p)) for term in p.terms if len(term.axes(p)) > 1):
        for axis in axes:
            yield _changed(case, **{term.field: tuple(other for other in axes if other != axis)})
    for part in p.mask.parts:
        yield _changed(case, mask=p.mask.without(part.kind))
    if p.mask != NO_MASK:
        yield _changed(case, mask=Causal())
    for part in p.mask.parts:
        for plainer in type(part).drawn(builds.of(case).tile_keys)[:PLAIN_MASKS]:
            yield _changed(case, mask=p.mask.without(part.kind) & plainer)
        for plainer in part.simplified():
            yield _changed(case, mask=p.mask.without(part.kind) & plainer)
    if p.scale != default_scale(p.head_dim):
        yield _changed(case, scale=None)
    if p.dropout_seed:
        yield _changed(case, dropout_seed=0)
    if not p.layout.is_dense:
        for plainer in p.layout.simplified():
            yield _changed(case, layout=plainer)
    yield from case.with_fewer_edits()
    build: AttentionBuild
    for build in builds.simplified(builds.of(case)):
        yield _rebuilt(case, builds.of(case), build)
        if build is builds.known[0] and not set(p.compiled_features) <= set(build.features):
            # Features that it needs, in the plainest build.
            is_wider = p.v_width > p.head_dim
            yield _rebuilt(case, builds.of(case), build.having(p.compiled_features, is_wider))
    yield from case.with_plainer_regime()
    yield from _shorter(case, builds.of(case))
    yield from case.with_small_seed()


def enlarged(case: Case, builds: Builds) -> Case:
    """A larger case with the same inputs: two tiles of rows, three of keys, several heads."""
    build = builds.of(case)
    kv_heads = max(2, case.problem.kv_heads_count)
    return _changed(
        case,
        batch=max(2, case.problem.batch),
        heads=kv_heads * case.problem.group,
        kv_heads=kv_heads,
        q_len=max(case.problem.q_len, 2 * build.tile_rows - build.tile_rows // 3),
        kv_len=max(case.problem.kv_len, 3 * build.tile_keys - build.tile_keys // 3),
    )


def probed_axes(case: Case, builds: Builds) -> list[ProbedAxis]:
    """Keys, then rows, each alone."""
    build: AttentionBuild = builds.of(case)
    p: Problem = case.problem
    return [
        ProbedAxis("kv_len", p.kv_len, build.tile_keys, lambda length: _changed(case, kv_len=length)),
        ProbedAxis("q_len", p.q_len, build.tile_rows, lambda length: _changed(case, q_len=length)),
    ]


def peculiarities(case: Case, tiles: Sequence[int], assumed_tile: Sequence[int] = ()) -> list[str]:
    """What a case has beyond the plainest, in words; `tiles` of rows and of keys per head.

    `assumed_tile` is the size of a tile if the variant declares none.
    """
    problem = case.problem
    takes = []
    lengths = ((problem.q_len, "rows"), (problem.kv_len, "keys"))
    for count, assumed, (length, what) in zip(tiles, assumed_tile or (0, 0), lengths):
        if count > 1:
            takes.append(f"more than {(count - 1) * assumed} {what}" if assumed else f"{count} tiles of {what}")
        elif length > 1:
            takes.append(f"{length} {what}")
    if problem.batch > 1:
        takes.append(f"batch {problem.batch}")
    takes += heads_in_words(problem)
    if problem.mask != NO_MASK:
        named = "a causal mask" if problem.mask.text == "causal" else f"the mask {problem.mask}"
        takes.append(named + (", rows that see no key" if (problem.keys_seen == 0).any() else ""))
    takes += [term.in_words(problem) for term in problem.terms]
    takes += [f"dropout {problem.dropout:.4g}"] if problem.dropout else []
    takes += [] if problem.layout.is_dense else [f"layout {problem.layout}"]
    if problem.v_head_dim is not None:
        takes.append(f"rows of V of {problem.v_head_dim} elements, of K {problem.head_dim}")
    takes += [f"offsets beyond {in_powers(problem.far)} elements"] if problem.far else []
    if problem.dtype != "float32":
        takes.append(problem.dtype)
    if problem.scale != default_scale(problem.head_dim):
        takes.append(f"scale {problem.tau:g}")
    return takes


def _fewer_tiles(case: Case, build: AttentionBuild) -> Iterator[Case]:
    p = case.problem
    row_tiles, key_tiles = build.tiles(p)
    here = (row_tiles * key_tiles, max(row_tiles, key_tiles))
    fewer = [(r, k) for r in _fewer(row_tiles) for k in _fewer(key_tiles)]
    for rows, keys in sorted(fewer, key=lambda pair: (pair[0] * pair[1], max(pair), pair)):
        if (rows * keys, max(rows, keys)) >= here:
            return
        # How full the last tiles are: as they were, barely, wholly, half.
        as_was = (p.q_len - (row_tiles - 1) * build.tile_rows, p.kv_len - (key_tiles - 1) * build.tile_keys)
        whole, half = (build.tile_rows, build.tile_keys), (-(-build.tile_rows // 2), -(-build.tile_keys // 2))
        for q_fill, kv_fill in dict.fromkeys((as_was, (1, 1), whole, half)):
            smaller = _changed(
                case, q_len=(rows - 1) * build.tile_rows + q_fill, kv_len=(keys - 1) * build.tile_keys + kv_fill
            )
            yield smaller
            yield dataclasses.replace(smaller, regime=RISING)


def _fewer(tiles: int) -> list[int]:
    """Up to `FEW` each number; of more, what leads to the least in a few steps each way, and one less."""
    steps = (tiles // 2, tiles * 3 // 4, tiles * 7 // 8, tiles - 1, tiles)
    return sorted({*range(1, min(FEW, tiles) + 1), *(n for n in steps if n > FEW)})


def _fewer_heads(case: Case) -> Iterator[Case]:
    p = case.problem
    counts = ((1, 1), (2, 2), (2, 1), (4, 2), (p.group, 1), (2 * p.group, 2))
    fewer = ((n * group, n) for group in (1, p.group) for n in (p.kv_heads_count // 2, p.kv_heads_count - 1) if n > 0)
    # One of them serves more heads than a group may have: then the group alone is made smaller.
    groups = ((group, 1) for group in (p.group // 2, p.group - 1) if group > 0)
    whole = ((p.heads, p.heads), (p.kv_heads_count, p.kv_heads_count))
    for heads, kv_heads in dict.fromkeys((*counts, *whole, *fewer, *groups)):
        yield _changed(case, heads=heads, kv_heads=kv_heads)
        yield _changed(case, heads=heads, kv_heads=kv_heads, batch=2)  # where heads and batch stand for each other
    for batch in dict.fromkeys((1, 2, p.batch // 2, p.batch - 1)):
        if batch > 0:
            yield _changed(case, batch=batch)


def _shorter(case: Case, build: AttentionBuild) -> Iterator[Case]:
    """Cases with as many tiles, the last one less full."""
    p = case.problem
    for field, tile in (("q_len", build.tile_rows), ("kv_len", build.tile_keys)):
        length = getattr(p, field)
        least = (length - 1) // tile * tile + 1
        room = length - least
        for shorter in dict.fromkeys((least, least + room // 2, length - room // 4, length - room // 16, length - 1)):
            if least <= shorter < length:
                yield _changed(case, **{field: shorter})
    # Both at once, where a mask ties them together.
    least = max((p.q_len - 1) // build.tile_rows * build.tile_rows, (p.kv_len - 1) // build.tile_keys * build.tile_keys)
    for shorter in (least + 1, min(p.q_len, p.kv_len)):
        yield _changed(case, q_len=shorter, kv_len=shorter)
    yield _changed(case, q_len=p.kv_len, kv_len=p.q_len)  # as few, but of one row
    if p.q_len > 1 and p.kv_len > 1:
        yield _changed(case, q_len=p.q_len - 1, kv_len=p.kv_len - 1)


def _rebuilt(case: Case, build: AttentionBuild, plainer: AttentionBuild) -> Case:
    """The case with another build: as many tiles, as full."""
    p = case.problem

    def length(old: int, old_tile: int, new_tile: int) -> int:
        tiles, fill = divmod(old - 1, old_tile)
        return tiles * new_tile + min(fill + 1, new_tile)

    changed = _changed(
        _with_features(case, plainer.features),
        dtype=plainer.dtype,
        head_dim=plainer.head_dim,
        v_head_dim=plainer.v_head_dim,
        scale=None if p.scale == default_scale(p.head_dim) else p.scale,
        q_len=length(p.q_len, build.tile_rows, plainer.tile_rows),
        kv_len=length(p.kv_len, build.tile_keys, plainer.tile_keys),
    )
    return dataclasses.replace(changed, tile=plainer.tile)


def _with_features(case: Case, features: Sequence[str]) -> Case:
    """With these features of scores and weights; those that the problem has stay what they are."""
    p = case.problem
    kept = {term.field: getattr(p, term.field) for term in p.terms}
    fields = {term.field: kept.get(term.field, term.plain) if term.field in features else term.off for term in p.TERMS}
    dropout = (p.dropout or PLAIN_DROPOUT) if DROPOUT in features else 0.0
    seed = p.dropout_seed if dropout else 0
    layout = DENSE if LAYOUT not in features else LAYOUTS[0] if p.layout.is_dense else p.layout
    far = 0 if dropout else p.far
    width = (p.v_head_dim or other_width(p.head_dim, is_wider=True)) if V_HEAD_DIM in features else None
    return _changed(case, **fields, dropout=dropout, dropout_seed=seed, layout=layout, far=far, **{V_HEAD_DIM: width})


def shorter(problem: Any) -> Iterator[tuple[str, Any]]:
    """A problem of attention, forward or backward, with fewer and fewer keys: each with the options that say it.

    Rows that would see no key under a causal mask go with the keys.
    """
    kv_len = problem.kv_len // 2
    while kv_len >= FEWEST_KEYS:
        q_len = min(problem.q_len, kv_len)
        words = f"--kv-len {kv_len}" if q_len == problem.q_len else f"--seq-len {kv_len}"
        yield words, dataclasses.replace(problem, q_len=q_len, kv_len=kv_len)
        kv_len //= 2


def _changed(case: Case, **fields: Any) -> Case:
    """With these fields, a mask and a layout that fit them, and without the edits that lie outside of it then."""
    p = case.problem
    batch, q_len, kv_len, mask = (fields.get(name, getattr(p, name)) for name in ("batch", "q_len", "kv_len", "mask"))
    mask = mask.clipped_to(batch, q_len, kv_len)
    fields["mask"] = mask_beside(mask, fields.get(DROPOUT, p.dropout), fields.get(BIAS, p.bias))
    layout = fields.pop(LAYOUT, p.layout)
    changed = dataclasses.replace(p, **fields, layout=DENSE)
    if not layout.is_dense:
        changed = dataclasses.replace(changed, layout=layout.fitted_to(changed.shapes))
    return case.with_problem(changed)
