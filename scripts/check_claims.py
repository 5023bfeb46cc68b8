#!/usr/bin/env python3
"""Hold every variant's claimed bytes against the counted ones, on drawn problems, and shrink what differs.

    .venv/bin/python scripts/check_claims.py                     # all variants, 200 problems each
    .venv/bin/python scripts/check_claims.py 'fa2*' --examples 1000 --seed 7

Half of attention's problems are of kernels and lengths that lie at edges of sectors and tiles; the other half, and all
of other operations, are those that campaigns of the fuzzer draw for the variant, with every feature that it takes.
Reads and writes have to agree each, to the byte. Exit status 1 where a claim differs, 2 where the call was wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from hypothesis import HealthCheck, Phase, find, given, seed, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from hypothesis.errors import NoSuchExample  # noqa: E402

from harness import Problem, Traffic, Variant  # noqa: E402
from harness.emulator.executor import EmulatorExecutor  # noqa: E402
from harness.execution.planning.variant_calls import claimed_traffic, make_plan, refusal_of  # noqa: E402
from harness.execution.protocol import Executor  # noqa: E402
from harness.model.discovery import discover  # noqa: E402
from harness.model.operation import DEFAULT_OPERATION, draw_inputs, operation_named  # noqa: E402
from harness.model.problem import BaseProblem  # noqa: E402
from harness.operations.attention.masks import NO_MASK, parse_mask  # noqa: E402
from harness.studies.fuzz.drawing.builds import builds_for  # noqa: E402
from harness.support.errors import SandboxError, UsageError  # noqa: E402
from harness.support.progress import progress_bar  # noqa: E402
from harness.text.tables import table  # noqa: E402

# dtype and head_dim are compiled into most kernels: few pairs to draw from. Rows of whole sectors and odd ones, shorter
# than a warp and longer, of one element.
KERNELS = (
    ("float32", 64), ("float32", 20), ("float16", 48), ("bfloat16", 33), ("float32", 1), ("float16", 128),
)  # fmt: skip
LENGTHS = st.one_of(st.sampled_from((1, 2, 16, 17, 31, 32, 33, 63, 64, 65, 97, 127, 128, 129)), st.integers(1, 150))
WIDTHS = (0, 1, 15, 31, 33, 200)
"""Widths of a window to either side: no key, half a tile, around a tile's edge, more than there are keys."""
WINDOWS = tuple(f"window:{left},{right}" for left in WIDTHS for right in WIDTHS)
# Cut to the keys and the sequences that there are.
OTHERS = (
    "documents:1+0", "documents:31+2+64", "documents:1+1+1+32+33", "documents:17+0+96+1+7", "documents:129+1",
    "documents:63+1+70/5+40", "prefix:1", "prefix:33", "prefix:64", "window:15,3+documents:1+31+70",
    "causal+documents:40+40", "window:20,2+prefix:33", "documents:64+64/31+97", "causal+documents:9+120/128+1",
)  # fmt: skip
MASKS = st.one_of(
    st.sampled_from(("none", "causal")),
    st.sampled_from((*WINDOWS, *(f"causal+{window}" for window in WINDOWS))),
    st.sampled_from(OTHERS),
)
LONG = st.integers(3000, 3300)
"""Around the longest row that the three-pass softmax keeps on chip."""
LARGEST_ROUNDS = 5
SEARCH = settings(
    deadline=None, database=None, phases=(Phase.generate, Phase.shrink), suppress_health_check=list(HealthCheck)
)


@st.composite
def problems(draw: st.DrawFn, kernels: tuple[tuple[str, int], ...] = KERNELS) -> Problem:
    """Problems of a few tiles: groups, batches, masks, any length; what is plain comes first, shrinking goes there."""
    dtype, head_dim = draw(st.sampled_from(kernels))
    kv_heads = draw(st.integers(1, 2))
    batch, q_len = draw(st.integers(1, 2)), draw(LENGTHS)
    kv_len = draw(st.one_of(LENGTHS, LENGTHS, LENGTHS, LENGTHS, LONG))
    return Problem(
        batch=batch,
        heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        q_len=q_len,
        kv_len=kv_len,
        head_dim=head_dim,
        dtype=dtype,
        mask=parse_mask(draw(MASKS)).clipped_to(batch, q_len, kv_len),
    )


def problems_for(variant: Variant) -> st.SearchStrategy[Any]:
    """Problems of the variant's operation, with what it takes."""
    operation = operation_named(variant.operation)
    builds = builds_for(variant, operation.builds)
    of_campaigns = operation.cases(builds, None, (), variant.takes).map(lambda case: case.problem)
    return st.one_of(problems(), of_campaigns) if variant.operation == DEFAULT_OPERATION else of_campaigns


@dataclass(frozen=True)
class ClaimCheck:
    """What came out for one variant."""

    variant: str
    problems: int
    """Distinct ones that it takes."""
    exact: int
    smallest: BaseProblem | None = None
    """The smallest problem that was found whose bytes are not as claimed."""
    difference: str | None = None
    """What differs there."""


def difference(variant: Variant, problem: BaseProblem, executor: Executor) -> str | None:
    """None where the claim is exact; else both figures, or what went wrong."""
    try:
        claim = claimed_traffic(variant, problem)
        execution = executor.run(problem, make_plan(variant, problem), draw_inputs(problem))
    except SandboxError as error:
        return str(error)
    assert claim is not None and execution.read_bytes is not None and execution.write_bytes is not None
    counted = Traffic(execution.read_bytes, execution.write_bytes)
    if claim.holds(counted.read_bytes, counted.write_bytes, execution.links):
        return None
    return (
        f"claims {claim.read_bytes:,} bytes read and {claim.write_bytes:,} written; "
        f"counted: {counted.read_bytes:,} and {counted.write_bytes:,}"
    )


def check(
    variant: Variant, executor: Executor, examples: int, start: int = 0, step: Callable[[], None] = lambda: None
) -> ClaimCheck:
    """Draw `examples` distinct problems, look at each, and shrink where one differs. `start` is the seed."""
    held: dict[BaseProblem, bool] = {}
    drawn = problems_for(variant)

    def differs(problem: BaseProblem) -> bool:
        return refusal_of(variant, problem) is None and difference(variant, problem, executor) is not None

    for again in range(LARGEST_ROUNDS):

        @seed(start + again)
        @settings(SEARCH, max_examples=2 * examples, phases=(Phase.generate,))
        @given(drawn)
        def look(problem: BaseProblem) -> None:
            if len(held) < examples and problem not in held and refusal_of(variant, problem) is None:
                held[problem] = not differs(problem)
                step()

        look()
        if len(held) == examples:
            break
    wrong = [problem for problem, holds in held.items() if not holds]
    if not wrong:
        return ClaimCheck(variant.name, len(held), len(held))
    try:
        smallest = find(
            drawn, differs, settings=settings(SEARCH, max_examples=10 * examples), random=random.Random(start)
        )
    except NoSuchExample:
        smallest = wrong[0]
    what = difference(variant, smallest, executor)
    return ClaimCheck(variant.name, len(held), len(held) - len(wrong), smallest, what)


def report(checks: Sequence[ClaimCheck]) -> str:
    """A row per variant; below, what differs."""
    cells = [
        [c.variant, str(c.problems), str(c.exact), "-" if c.smallest is None else c.smallest.headline] for c in checks
    ]
    lines = [table(["variant", "problems", "exact", "smallest that differs"], cells, [False, True, True, False]), ""]
    for c in checks:
        if c.smallest is not None:
            lines.append(f"{c.variant}: {c.difference}")
            if isinstance(c.smallest, Problem):
                lines.append(f"    python -m harness traffic {c.variant} {options(c.smallest)}")
    drawn, exact = sum(c.problems for c in checks), sum(c.exact for c in checks)
    lines.append(f"Claimed = counted, reads and writes each, in {exact:,} of {drawn:,} drawn problems.")
    return "\n".join(lines)


def options(problem: Problem) -> str:
    """The problem as the command line takes it."""
    fields = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "dtype")
    words = [f"--{field.replace('_', '-')} {getattr(problem, field)}" for field in fields]
    words += [] if problem.mask == NO_MASK else [f"--mask {problem.mask.text}"]
    values = {term.field.replace("_", "-"): problem.to_fields()[term.field] for term in problem.terms}
    words += [f"--{option}" if value is True else f"--{option} {value}" for option, value in values.items()]
    words += [f"--dropout {problem.dropout}"] if problem.dropout else []
    return " ".join(words)


def chosen(names: Sequence[str], plugins: Sequence[Path]) -> list[Variant]:
    """The variants to look at: all that claim anything, or those named. Raises `UsageError`."""
    selected = discover(plugins).registry.select(",".join(names) if names else None)
    silent = [variant.name for variant in selected if variant.claim is None]
    if silent and names:
        raise UsageError(f"{', '.join(silent)}: claims nothing, so there is nothing to check")
    return [variant for variant in selected if variant.claim is not None]


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, look, print, judge."""
    parser = argparse.ArgumentParser(description="Hold claimed bytes against counted ones on drawn problems.")
    parser.add_argument("variants", nargs="*", metavar="VARIANT", help="names or patterns such as 'fa*' (default: all)")
    parser.add_argument("--examples", type=int, default=200, metavar="N", help="problems each (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="same seed, same problems (default: 0)")
    parser.add_argument("--plugin", type=Path, action="append", default=[], metavar="FILE.py", help="more variants")
    arguments = parser.parse_args(argv)
    if arguments.examples < 1:
        parser.error(f"--examples is {arguments.examples}; it has to be at least 1")
    try:
        variants = chosen(arguments.variants, arguments.plugin)
    except SandboxError as error:
        print(f"check_claims: {error}", file=sys.stderr)
        return 2
    checks = []
    with progress_bar(len(variants) * arguments.examples) as progress:
        for variant in variants:
            executor = EmulatorExecutor()
            step = lambda name=variant.name: progress.step(name)  # noqa: E731
            checks.append(check(variant, executor, arguments.examples, arguments.seed, step))
    print(report(checks))
    few = [c.variant for c in checks if c.problems < arguments.examples]
    if few:
        print(f"check_claims: fewer than {arguments.examples} problems for {', '.join(few)}", file=sys.stderr)
    return 1 if few or any(c.exact < c.problems for c in checks) else 0


if __name__ == "__main__":
    sys.exit(main())
