"""Drafts a variant's claim: a closed form that equals its counted bytes on some problems, and on others held out."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from harness.execution.attempt import attempt
from harness.execution.planning.tiles import tile_of, with_tile
from harness.execution.protocol import Executor
from harness.execution.traffic.counts import LOCAL, READS, WRITES, SiteTraffic
from harness.model.operation import draw_inputs, operation_of
from harness.model.problem import ELEMENT_BYTES, BaseProblem
from harness.model.tile_sizes import TileSizes
from harness.model.variant import Variant
from harness.support.errors import SandboxError, UsageError
from harness.support.memory_units import SECTOR_BYTES
from harness.text.report import Report, Verbatim

FIELDS = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim")
"""Sizes of a problem that a closed form may depend on."""
PLAIN_SIZES = {"batch": 1, "heads": 2, "kv_heads": 2, "q_len": 128, "kv_len": 256, "head_dim": 64}
FITTED: Sequence[Mapping[str, int]] = (
    {},
    {"batch": 2},
    {"heads": 4},
    {"heads": 4, "kv_heads": 4},
    {"q_len": 256},
    {"kv_len": 512},
    {"head_dim": 32},
    {"q_len": 96, "kv_len": 160},
    {"q_len": 104, "kv_len": 152},
    {"q_len": 40, "kv_len": 24},
    {"q_len": 24, "kv_len": 40},
)
"""What differs from `PLAIN_SIZES` in each problem that the form is fitted to."""
HELD_OUT: Sequence[Mapping[str, int]] = (
    {"batch": 3, "heads": 6, "kv_heads": 3, "q_len": 200, "kv_len": 328, "head_dim": 64},
    {"q_len": 8, "kv_len": 72},
    {"q_len": 336, "kv_len": 24, "head_dim": 32},
)
TILES = (8, 16, 32, 64, 128, 256)
"""Tile sizes that are tried."""

Sizes = Mapping[str, int]
TileNames = Mapping[tuple[str, int], str]
"""What a tile size is called in code, by the length that it divides and its value."""


@dataclass(frozen=True)
class _Term:
    """A product of sizes and numbers of tiles, times a constant."""

    heads: str
    """`heads` or `kv_heads`."""
    factors: tuple[tuple[str, int], ...]
    """Size and tile, 0 for the size itself."""
    constant: int = 1

    @property
    def simplicity(self) -> tuple[int, int]:
        """Few factors first, and sizes before numbers of tiles."""
        return len(self.factors), sum(tile > 0 for _, tile in self.factors)

    def value(self, sizes: Sizes) -> int:
        """The product for these sizes."""
        counts = (-(-sizes[name] // tile) if tile else sizes[name] for name, tile in self.factors)
        return self.constant * sizes["batch"] * sizes[self.heads] * math.prod(counts)

    def code(self, names: TileNames) -> str:
        """The product as Python, of a problem `p` and of its tile sizes."""
        heads = "p.heads" if self.heads == "heads" else "p.kv_heads_count"
        counts = [
            f"-(-p.{name} // {names.get((name, tile), tile)})" if tile else f"p.{name}" for name, tile in self.factors
        ]
        return " * ".join(["p.batch", heads, *counts, *([str(self.constant)] if self.constant != 1 else [])])


@dataclass(frozen=True)
class DraftedLine:
    """The bytes read, or written, of one buffer."""

    buffer: str
    written: bool
    code: str | None
    """The closed form, in bytes; None if none was found."""


@dataclass(frozen=True)
class ClaimDraft:
    """A draft, and what it was held against."""

    variant: str
    lines: tuple[DraftedLine, ...]
    fitted: int
    """Number of problems that the draft was fitted to."""
    held_out: int
    """Number of other problems that it equals, too."""
    unlike: tuple[str, ...]
    """Other problems for which it is wrong."""
    takes_tile: bool
    """Whether the variant declares tile sizes, so that its `claim` gets them."""

    @property
    def is_complete(self) -> bool:
        """Whether every buffer has a closed form."""
        return all(line.code is not None for line in self.lines)


def draft_claim(variant: Variant, problem: BaseProblem, executor: Executor) -> ClaimDraft:
    """Fit a closed form per buffer to counts of small problems with the dtype of `problem`, without a mask.

    Raises `UsageError` if the operation's problems have other sizes, or if the variant supports too few of them.
    """
    if problem.operation != "attention":
        raise UsageError("--claim-draft supports only attention")
    if problem.features:
        raise UsageError(f"--claim-draft is for problems without {', '.join(problem.features)}; leave that out")
    tile = tile_of(variant, _resized(problem, PLAIN_SIZES))
    variant = variant if tile is None else with_tile(variant, tile)
    fitted = _counts(variant, problem, executor, FITTED)
    held_out = _counts(variant, problem, executor, HELD_OUT)
    lines, right = [], {tuple(sizes.items()): True for sizes, _ in held_out}
    names = _tile_names(problem, tile or {})
    for place in dict.fromkeys(place for _, counts in fitted for place in counts):
        points = [(sizes, counts.get(place, 0)) for sizes, counts in fitted]
        terms = _fitting(points, {*TILES, *(tile or {}).values()})
        code = None
        if terms is not None:
            code = _code(terms, ELEMENT_BYTES[problem.outputs[0].dtype], names)
            for sizes, counts in held_out:
                right[tuple(sizes.items())] &= sum(each.value(sizes) for each in terms) == counts.get(place, 0)
        lines.append(DraftedLine(*place, code))
    wrong = (sizes for sizes, is_right in right.items() if not is_right)
    unlike = tuple(", ".join(f"{name} {size}" for name, size in sizes) for sizes in wrong)
    return ClaimDraft(variant.name, tuple(lines), len(fitted), sum(right.values()), unlike, tile is not None)


Place = tuple[str, bool]
"""A buffer, and whether it is written."""


def _counts(
    variant: Variant, problem: BaseProblem, executor: Executor, differing: Sequence[Sizes]
) -> list[tuple[Sizes, Mapping[Place, int]]]:
    """Count the bytes of each problem that the variant supports, by buffer and direction."""
    found: list[tuple[Sizes, Mapping[Place, int]]] = []
    for other in differing:
        sizes = {**PLAIN_SIZES, **other}
        small = _resized(problem, sizes)
        done = attempt(variant, small, executor, draw_inputs(small), holds_bytes=False)
        if done.error is not None and not isinstance(done.error, SandboxError):
            raise done.error
        if done.execution is not None:
            found.append((sizes, dict(_by_place(done.execution.accesses))))
        elif differing is FITTED:
            raise UsageError(f"{variant.name} does not run on a problem that the form is fitted to: {done.failure}")
    return found


def _resized(problem: BaseProblem, sizes: Sizes) -> BaseProblem:
    return type(problem).from_fields({**problem.to_fields(), **sizes})


def _by_place(sites: Sequence[SiteTraffic]) -> Iterator[tuple[Place, int]]:
    for buffer in dict.fromkeys(site.buffer for site in sites if site.buffer != LOCAL):
        for written, kinds in ((False, READS), (True, WRITES)):
            own = [site.sectors for site in sites if site.buffer == buffer and site.kind in kinds]
            if own:
                yield (buffer, written), SECTOR_BYTES * sum(own)


def _terms(tiles: Iterable[int]) -> Iterator[_Term]:
    """All products that are tried, simple ones first."""
    rows, keys = ([(), ((name, 0),), *(((name, tile),) for tile in sorted(tiles))] for name in ("q_len", "kv_len"))
    products = itertools.product(("heads", "kv_heads"), rows, keys, ((), (("head_dim", 0),)))
    return iter(sorted((_Term(heads, (*r, *k, *d)) for heads, r, k, d in products), key=lambda term: term.simplicity))


def _fitting(points: Sequence[tuple[Sizes, int]], tiles: Iterable[int]) -> tuple[_Term, ...] | None:
    """One term, or the sum of two, that equals all counts; the simplest of those. None if there is none."""
    terms = [(term, [term.value(sizes) for sizes, _ in points]) for term in _terms(tiles)]
    counts = [count for _, count in points]
    for term, values in terms:
        ratio = Fraction(counts[0], values[0])
        if ratio.denominator == 1 and all(ratio * value == count for value, count in zip(values, counts)):
            return (dataclasses.replace(term, constant=int(ratio)),)
    for (one, a), (other, b) in itertools.combinations(terms, 2):
        solved = _solved(a, b, counts)
        if solved is not None:
            return tuple(dataclasses.replace(term, constant=c) for term, c in zip((one, other), solved))
    return None


def _solved(a: Sequence[int], b: Sequence[int], counts: Sequence[int]) -> tuple[int, int] | None:
    """Positive whole numbers x and y with x a + y b = counts; None if there are none."""
    for i in range(1, len(a)):
        determinant = a[0] * b[i] - a[i] * b[0]
        if determinant:
            x, left = divmod(counts[0] * b[i] - counts[i] * b[0], determinant)
            y, also_left = divmod(a[0] * counts[i] - a[i] * counts[0], determinant)
            fits = not (left or also_left) and x > 0 and y > 0
            return (x, y) if fits and all(x * p + y * q == c for p, q, c in zip(a, b, counts)) else None
    return None


def _tile_names(problem: BaseProblem, tile: TileSizes) -> TileNames:
    named = operation_of(problem).tile_names
    sides = {"q_len": named.get("row"), "kv_len": named.get("key")}
    return {
        (length, tile[name]): f'tile["{name}"]' for length, name in sides.items() if name is not None and name in tile
    }


def _code(terms: Sequence[_Term], element_bytes: int, names: TileNames) -> str:
    """The sum as Python, in which `element` is the size of an element in bytes."""
    parts = []
    for term in terms:
        per_element, rest = divmod(term.constant, element_bytes)
        in_elements = not rest and any(name == "head_dim" for name, _ in term.factors)
        inner = dataclasses.replace(term, constant=per_element if in_elements else term.constant)
        parts.append(f"{inner.code(names)} * element" if in_elements else inner.code(names))
    return " + ".join(parts)


# For people ----------------------------------------------------------------------------------------------------------


def draft_report(draft: ClaimDraft) -> Report:
    """The report of `traffic --claim-draft`: the code of a `claim`."""
    return Report(
        paragraphs=lambda: [Verbatim(_function(draft))],
        notes=lambda: _notes(draft),
        records=lambda: ([dataclasses.asdict(line) for line in draft.lines], ("buffer", "written", "code")),
        document=lambda: dataclasses.asdict(draft),
    )


def _function(draft: ClaimDraft) -> str:
    arguments = "p, tile=None" if draft.takes_tile else "p"
    sums = {name: [line for line in draft.lines if line.written == (name == "written")] for name in ("read", "written")}
    lines = [
        f"def claim({arguments}):",
        "    if p.features:",
        "        return None  # drafted for problems without masks and other optional features",
        '    element = 4 if p.dtype == "float32" else 2',
    ]
    for name, parts in sums.items():
        lines.append(f"    {name} = (")
        known = [f"{line.code}  # {line.buffer}" for line in parts if line.code is not None] or ["0"]
        lines += [f"        {'+ ' if i else ''}{term}" for i, term in enumerate(known)]
        lines += [f"        # + ...  {line.buffer}: no product of sizes" for line in parts if line.code is None]
        lines.append("    )")
    return "\n".join([*lines, "    return Traffic(read, written)"])


def _notes(draft: ClaimDraft) -> list[str]:
    notes = [
        f"Drafted from the counts of {draft.fitted} small problems without a mask; equal to those of {draft.held_out} "
        "others. Use it as a start: only a claim that you derive from the kernel's loops is confirmed by the count."
    ]
    if draft.unlike:
        notes.append(f"Wrong for {'; for '.join(draft.unlike)}.")
    return notes
