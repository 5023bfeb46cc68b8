"""A failing case made smaller along its own fields, after Hypothesis made its draws simpler."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from harness.model.cases.axes import ProbedAxis
from harness.model.cases.build import Builds
from harness.model.cases.case import Case
from harness.model.problem import LARGEST_EXTENT
from harness.model.spread import in_powers, nearer_than
from harness.operations.attention.problem import LAYOUT
from harness.operations.attention.sizes import default_scale, heads_in_words
from harness.operations.paged_attention.build import PLAIN_WINDOW, PagedBuild
from harness.operations.paged_attention.chunks import Q_LENGTHS, rows_in_words
from harness.operations.paged_attention.eight_bits import E4M3, KV_DTYPE
from harness.operations.paged_attention.pool_layout import DENSE
from harness.operations.paged_attention.pool_layout import DRAWN as LAYOUTS
from harness.operations.paged_attention.problem import PagedProblem
from harness.operations.paged_attention.sequences import WINDOW, PagedPool, lengths_in_words

RISING = "rising"
"""Inputs under which every further key matters: tried where fewer keys hide a mistake."""
MOST_TAKEN_ONE_BY_ONE = 12
"""Sequences of which each is left out, or made shorter, on its own."""


FEWEST_KEYS = 16
"""Keys of the longest sequence of the shortest problem: a page."""


def size(case: Case, builds: Builds) -> tuple[object, ...]:
    """How large a case is: tiles first, then sequences, heads and rows, the build, and how plain the inputs are."""
    p: PagedProblem = case.problem
    build: PagedBuild = builds.of(case)
    return (
        p.far.bit_length(),
        sum(-(-length // build.tile_keys) for length in p.lengths),
        p.sequences,
        sum(p.sequence_pages),
        p.heads,
        p.q_len,
        sum(p.rows),
        p.prefix != 0,
        len(builds.of(case).features),
        p.layout.complexity,
        LARGEST_EXTENT if p.window is None else p.window,
        (p.pages is not None) + (p.table_len is not None),
        p.scale != default_scale(p.head_dim),
        *builds.input_size(case),
        sum(p.lengths),
        case.seed,
    )


def simpler(case: Case, builds: Builds) -> Iterator[Case]:
    """Cases that are smaller in one respect, the most worthwhile first; a few of them are not smaller at all."""
    p: PagedProblem = case.problem
    for nearer in nearer_than(p.far):
        yield changed(case, far=nearer)
    if case.check is not None and sum(builds.of(case).tiles(p)) > MOST_TAKEN_ONE_BY_ONE:
        yield dataclasses.replace(case, check=None)  # what takes long is made cheap first
    for sequences in _fewer_sequences(tuple(zip(p.lengths, p.rows))):
        lengths, rows = zip(*sequences)
        if p.q_lengths is None or any(rows):
            yield changed(case, lengths=lengths, **_packed(p, rows))
    for lengths in _shorter(p, builds.of(case)):
        yield changed(case, lengths=lengths)
        yield dataclasses.replace(changed(case, lengths=lengths), regime=RISING)
    for heads, kv_heads in dict.fromkeys(((1, 1), (2, 2), (2, 1), (4, 2), (p.group, 1), (p.kv_heads, p.kv_heads))):
        yield changed(case, heads=heads, kv_heads=kv_heads)
    if p.q_lengths is not None:
        yield changed(case, q_lengths=None, q_len=1)
        yield changed(case, q_lengths=None, q_len=p.q_len)
        yield from _with_fewer_rows(case)
    for q_len in dict.fromkeys((1, 2, p.q_len // 2, p.q_len - 1)):
        if 1 <= q_len < p.q_len:
            yield _with_q_len(case, q_len)
    if p.window is not None:
        for window in dict.fromkeys((None, 0, 1, p.page_size, p.window // 2, p.window - 1)):
            if window is None or 0 <= window < p.window:
                yield changed(case, window=window)
    if p.kv_dtype is not None:
        yield changed(case, kv_dtype=None)
    if not p.layout.is_dense:
        for plainer in p.layout.simplified():
            yield changed(case, layout=plainer)
    for term in p.terms:
        yield changed(case, **{term.field: term.off})
    for field, plain in (("prefix", 0), ("pages", None), ("table_len", None), ("scale", None)):
        yield changed(case, **{field: plain})
    yield from case.with_fewer_edits()
    for build in builds.simplified(builds.of(case)):
        yield _rebuilt(case, builds.of(case), build)
    yield from case.with_plainer_regime()
    yield from case.with_small_seed()


def enlarged(case: Case, builds: Builds) -> Case:
    """A larger case with the same inputs: three sequences at least, of two tiles and a bit."""
    p: PagedProblem = case.problem
    least = 2 * builds.of(case).tile_keys + p.page_size // 2 + 1
    lengths = tuple(max(length, least) for length in p.lengths)
    kv_heads, more = max(2, p.kv_heads), 3 - len(lengths)
    return changed(
        case, lengths=lengths + (least,) * more, heads=kv_heads * p.group, kv_heads=kv_heads,
        **_packed(p, p.rows + (p.q_len,) * more),
    )  # fmt: skip


def probed_axes(case: Case, builds: Builds) -> list[ProbedAxis]:
    """Keys of every sequence, then rows."""
    p: PagedProblem = case.problem
    build: PagedBuild = builds.of(case)
    sequences = len(p.lengths)
    return [
        ProbedAxis(
            "keys per sequence", max(p.lengths), build.tile_keys, lambda n: changed(case, lengths=(n,) * sequences)
        ),
        ProbedAxis("q_len", p.q_len, 1, lambda n: _with_q_len(case, n)),
    ]


def peculiarities(case: Case, tiles: Sequence[int], assumed_tile: Sequence[int] = ()) -> list[str]:
    """What a case has beyond the plainest, in words."""
    p: PagedProblem = case.problem
    takes = [lengths_in_words(p.lengths), *heads_in_words(p)]
    if p.q_lengths is not None:
        takes.append(rows_in_words(p.q_lengths))
    elif p.q_len > 1:
        takes.append(f"{p.q_len} rows")
    if any(p.shared_pages):
        takes.append(f"a prefix of {p.prefix} keys")
    takes += [] if p.kv_dtype is None else [f"K and V in {p.kv_dtype}"]
    takes += [] if p.window is None else [f"a window of {p.window} keys"]
    takes += [term.in_words(p) for term in p.terms]
    takes += [] if p.layout.is_dense else [f"layout {p.layout}"]
    takes.append(f"pages of {p.page_size}")
    if p.table_len is not None:
        takes.append(f"a table of {p.table_len} places")
    takes.append(p.dtype)
    if p.scale != default_scale(p.head_dim):
        takes.append(f"scale {p.tau:g}")
    if p.far:
        takes.append(f"offsets beyond {in_powers(p.far)} elements")
    return takes


def _packed(problem: PagedProblem, rows: Sequence[int]) -> dict[str, object]:
    """The field with the rows of each sequence, if the problem has it."""
    return {} if problem.q_lengths is None else {Q_LENGTHS: tuple(rows)}


def _with_q_len(case: Case, q_len: int) -> Case:
    """With so many rows in each sequence; where they differ, with at most so many, and the most if it has them."""
    p: PagedProblem = case.problem
    if p.q_lengths is None:
        return changed(case, q_len=q_len)
    most = max(p.rows)
    return changed(case, q_lengths=tuple(q_len if rows == most else min(rows, q_len) for rows in p.rows))


def _with_fewer_rows(case: Case) -> Iterator[Case]:
    """One sequence with fewer rows."""
    p: PagedProblem = case.problem
    for at, rows in enumerate(p.rows[:MOST_TAKEN_ONE_BY_ONE]):
        for fewer in dict.fromkeys((0, 1, rows // 2, rows - 1)):
            changed_rows = (*p.rows[:at], fewer, *p.rows[at + 1 :])
            if 0 <= fewer < rows and any(changed_rows):
                yield changed(case, q_lengths=changed_rows)
                if rows == p.lengths[at]:  # a whole prompt stays one
                    yield changed(case, q_lengths=changed_rows, lengths=(*p.lengths[:at], fewer, *p.lengths[at + 1 :]))


Sequences = tuple[tuple[int, int], ...]
"""Keys and rows of each sequence."""


def _fewer_sequences(sequences: Sequences) -> Iterator[Sequences]:
    """One of them, two neighbours, halves, all but one."""
    count = len(sequences)
    if count == 1:
        return
    few = min(count, MOST_TAKEN_ONE_BY_ONE)
    yield from dict.fromkeys((each,) for each in sorted(set(sequences))[:few])
    if count > 2:
        yield from dict.fromkeys(sequences[at : at + 2] for at in range(few - 1))
        yield sequences[: count // 2]
        yield sequences[count // 2 :]
        yield from (sequences[:at] + sequences[at + 1 :] for at in range(few))


def _shorter(problem: PagedProblem, build: PagedBuild) -> Iterator[tuple[int, ...]]:
    """Every length, or one of them, of fewer tiles, fewer pages or fewer keys."""
    p = problem
    for unit in (build.tile_keys, p.page_size, 1):
        yield tuple(max(0, length - unit) if length > unit else length for length in p.lengths)
    for at, length in enumerate(p.lengths[:MOST_TAKEN_ONE_BY_ONE]):
        shorter = (
            0, 1, length % p.page_size, length % build.tile_keys, p.page_size, p.page_size + 1, build.tile_keys,
            build.tile_keys + 1, length // 2, length - build.tile_keys, length - p.page_size, length - 1,
        )  # fmt: skip
        for other in dict.fromkeys(shorter):
            if 0 <= other < length:
                yield (*p.lengths[:at], other, *p.lengths[at + 1 :])


def _rebuilt(case: Case, build: PagedBuild, plainer: PagedBuild) -> Case:
    """As many tiles, or pages, filled alike, with another build."""
    p: PagedProblem = case.problem

    def length(old: int) -> int:
        by_tiles = old > build.tile_keys
        unit = build.tile_keys if by_tiles else p.page_size
        count, rest = divmod(old, unit)
        other = plainer.tile_keys if by_tiles else plainer.page_size
        return count * other + min(rest, other - 1)

    rebuilt = changed(
        case,
        lengths=tuple(map(length, p.lengths)),
        dtype=plainer.dtype,
        head_dim=plainer.head_dim,
        page_size=plainer.page_size,
        scale=None if p.scale == default_scale(p.head_dim) else p.scale,
        kv_dtype=E4M3 if KV_DTYPE in plainer.features else None,
        **_rows_with(p, Q_LENGTHS in plainer.features),
        layout=DENSE if LAYOUT not in plainer.features else LAYOUTS[0] if p.layout.is_dense else p.layout,
        window=(PLAIN_WINDOW if p.window is None else p.window) if WINDOW in plainer.features else None,
        **{
            term.field: (getattr(p, term.field) if term in p.terms else term.plain)
            if term.field in plainer.features
            else term.off
            for term in p.TERMS
        },
    )
    return dataclasses.replace(rebuilt, tile=plainer.tile)


def _rows_with(problem: PagedProblem, packed: bool) -> dict[str, object]:
    """The fields with the numbers of rows, as those of a problem whose rows are packed, or are not."""
    if packed == (problem.q_lengths is not None):
        return {}
    return {Q_LENGTHS: problem.rows} if packed else {Q_LENGTHS: None, "q_len": problem.q_len}


def shorter(problem: PagedProblem) -> Iterator[tuple[str, PagedProblem]]:
    """All sequences half as long, and so on, as far as their rows stay: each with the option that says it."""
    lengths = problem.lengths
    while max(lengths) >= 2 * max(FEWEST_KEYS, problem.q_len):
        lengths = tuple(min(length, max(problem.q_len, length // 2)) for length in lengths)
        words = f"--lengths {'+'.join(map(str, lengths))}"
        yield words, dataclasses.replace(problem, lengths=lengths, pages=None, table_len=None, in_use=None)


def changed(case: Case, **fields: object) -> Case:
    """With these fields of its problem, the pool as large as it has to be, and without the edits outside of it."""
    p: PagedPool = case.problem
    problem = type(p).from_fields({**p.to_fields(), "batch": None, "pages": None, "table_len": None, **fields})
    if "pages" not in fields and p.pages is not None and p.pages >= problem.pages_in_use:
        problem = problem.with_fields(pages=p.pages)
    if "table_len" not in fields and p.table_len is not None and p.table_len >= problem.table_shape[1]:
        problem = problem.with_fields(table_len=p.table_len)
    return case.with_problem(problem)
