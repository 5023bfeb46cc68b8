"""Renders a `WhyResult` as text: the largest cost first, then the others, and the most promising change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from textwrap import fill
from typing import Any

from harness.model.problem import BaseProblem
from harness.studies.why import causes
from harness.studies.why.attribution import Attributed
from harness.studies.why.decisions import FEW_PRODUCTS, MANY_TIMES, has_no_tiles
from harness.studies.why.predicted_time import PredictedTime
from harness.studies.why.profile import Profile
from harness.studies.why.result import ROOFLINE, WhyResult
from harness.studies.why.shares import PLACELESS, totals
from harness.studies.why.stalls import blocks_there, is_limited_by_grid, launch_of_fewest_warps
from harness.support.gpu_data_sheets import Gpu
from harness.support.pipe_rates import clock_hz
from harness.support.source_text import short_name, source_line
from harness.text.report import NOTE_WIDTH, Paragraph, Report, Table, wrong_answer
from harness.text.tables import UNKNOWN, device_line

SHOWN_SHARE = 0.02
"""Causes below this fraction of the larger time or of the difference are summed in one row."""
ADVISED = 3
ALL_AND_MORE = 1.1
"""A cause above this multiple of the difference is compensated by others."""
MICRO = 1e-6
CSV_KEYS = (
    "variant", "other", "cause", "unit", "figure", "other_figure", "cost_us", "share", "file", "line", "buffer",
    "includes", "advice",
)  # fmt: skip


def why_report(result: WhyResult) -> Report:
    """The report of `why`."""
    return Report(
        paragraphs=lambda: _paragraphs(result),
        notes=lambda: _notes(result),
        records=lambda: ([_record(result, each) for each in result.causes], CSV_KEYS),
        document=lambda: _document(result),
    )


# For people ----------------------------------------------------------------------------------------------------------


def _paragraphs(result: WhyResult) -> list[Paragraph]:
    parts: list[Paragraph] = [
        fill(f"{_problem(result)}; inputs {result.regime}, seed {result.seed}", NOTE_WIDTH, break_on_hyphens=False),
        *_wrong_answers(result),
        _headline(result),
        *_small_problem(result),
        _table(result),
        "\n".join(_advice(result)),
    ]
    if result.measured is not None:
        parts.append(_measured(result))
    return parts


def _problem(result: WhyResult) -> str:
    """The problem in words, with the second variant's if that is another one."""
    problem, fast = result.slow.problem, result.fast
    if fast is None or fast.problem == problem:
        return problem.headline
    return f"{result.slow.variant}: {problem.headline}; {fast.variant}: {fast.problem.headline}"


def _profiles(result: WhyResult) -> list[Profile]:
    return [result.slow] if result.fast is None else [result.slow, result.fast]


def _wrong_answers(result: WhyResult) -> Iterator[str]:
    for profile in _profiles(result):
        text = wrong_answer(profile.variant, profile.verdict, profile.reason)
        if text is not None:
            yield text


def _article(name: str) -> str:
    """The article of a name that is spelt out, such as `an H200` or `a B200`."""
    return "an" if name[0] in "AEFHILMNORSX" else "a"


def _headline(result: WhyResult) -> str:
    slow, fast = result.names
    than = f"the {fast}" if fast == ROOFLINE else fast
    times = (
        f"{_us(result.slow_time.seconds)} us compared with {_us(result.fast_time.seconds)} us on "
        f"{_article(result.gpu.name)} {result.gpu.name}"
    )
    ratio = result.slow_time.seconds / result.fast_time.seconds
    shown = _shown(result)
    if result.distance_seconds <= 0 or not shown or shown[0].seconds <= 0:
        return f"{slow} is predicted to be no slower than {than}: {times}, a ratio of {ratio:.2f}."
    first = shown[0]
    where = _where(result, first)
    return (
        f"{slow} is predicted to take {ratio:.2f} times as long as {than}: {times}.\n"
        f"Largest cause: {first.cause.name}, {_us(first.seconds)} us{f' ({where})' if where else ''}."
    )


BLOCKS_PER_MULTIPROCESSOR = 2
"""So many that none is idle, and that the tail is short."""


def blocks_of_main_launch(profile: Profile) -> int:
    """The number of blocks of the launch that executes most instructions."""
    main = max(profile.launches, key=lambda launch: launch.instructions.warps_of(lambda row: True))
    return main.blocks


def heads_that_fill(problem: BaseProblem, blocks: int, gpu: Gpu) -> int | None:
    """The number of heads with which a grid that now has so many blocks fills the GPU; None if there are no heads."""
    fields = problem.to_fields()
    heads, kv_heads = fields.get("heads"), fields.get("kv_heads")
    if not isinstance(heads, int):
        return None
    wanted = -(-BLOCKS_PER_MULTIPROCESSOR * gpu.multiprocessors * heads // blocks)
    step = kv_heads if isinstance(kv_heads, int) and kv_heads != heads else 1
    return -(-wanted // step) * step


def _small_problem(result: WhyResult) -> Iterator[str]:
    """A note on grids that leave multiprocessors idle, which hides what the kernels themselves cost."""
    places = result.gpu.multiprocessors
    few = {each.variant: blocks for each in _profiles(result) if (blocks := blocks_of_main_launch(each)) < places}
    if not few:
        return
    (first, blocks), *others = few.items()
    counted = f"{first} has {blocks} block{'' if blocks == 1 else 's'}"
    counted += "".join(f" and {name} has {number}" for name, number in others)
    what = "prediction" if result.fast is None else "comparison"
    heads = heads_that_fill(result.slow.problem, min(few.values()), result.gpu)
    yield fill(
        f"The problem is small for this GPU: {counted} for {places} multiprocessors, so this {what} says little about "
        f"{'their' if others else 'its'} speed on a full GPU. "
        + ("Choose a larger problem." if heads is None else f"Add --heads {heads}."),
        NOTE_WIDTH,
        break_on_hyphens=False,
    )


def _table(result: WhyResult) -> Table:
    slow, fast = result.names
    headers = ("cause", _folded(slow), _folded(fast), "unit", "cost\nus", "share\n%", "where")
    cells = [_cells(result, each) for each in _shown(result)]
    others = [each.seconds for each in result.causes if each not in _shown(result)]
    if others:
        cells.append([f"{len(others)} others", "", "", "", *_cost(result, sum(others)), ""])
    cells.append(["all", "", "", "", *_cost(result, result.distance_seconds), ""])
    return Table(headers, cells, (False, True, True, False, True, True, False))


def _shown(result: WhyResult) -> list[Attributed]:
    least = SHOWN_SHARE * max(abs(result.distance_seconds), SHOWN_SHARE * result.slow_time.seconds)
    return [each for each in result.causes if abs(each.seconds) >= least and not _is_equal(result, each)]


def _is_equal(result: WhyResult, each: Attributed) -> bool:
    """Whether both figures are equal as printed.

    The cost of such a cause is explained by others and included in their row.
    """
    first, second = result.figures(each.cause)
    return first is not None and second is not None and _figure(first) == _figure(second)


def _cells(result: WhyResult, each: Attributed) -> list[str]:
    figures = [UNKNOWN if value is None else _figure(value) for value in result.figures(each.cause)]
    return [each.cause.name, *figures, each.cause.unit, *_cost(result, each.seconds), _where(result, each)]


def _cost(result: WhyResult, seconds: float) -> tuple[str, str]:
    distance = result.distance_seconds
    share = f"{100 * seconds / distance:,.0f}" if distance > 0 else UNKNOWN
    return _us(seconds), share


def _where(result: WhyResult, each: Attributed) -> str:
    """A place, a buffer, or a limiting resource, abbreviated for a column."""
    costlier = result.slow if each.seconds >= 0 or result.fast is None else result.fast
    if each.cause is causes.FEW_WARPS:
        return _limit(costlier, result.gpu)
    if each.cause is causes.TAIL:
        blocks = [launch.blocks for launch in costlier.launches]
        one = f"{min(blocks):,} block{'s' if min(blocks) > 1 else ''}"
        what = one if len(blocks) == 1 else f"{min(blocks):,} to {max(blocks):,} blocks"
        return f"{what} for {result.gpu.multiprocessors} SMs"
    file, line = each.where
    place = "" if each.where == PLACELESS else f"{'/'.join(Path(short_name(file)).parts[-2:])}:{line}"
    return f"{each.buffer} {place}".strip() if each.buffer and " " not in each.buffer else place


def _limit(profile: Profile, gpu: Gpu) -> str:
    least = launch_of_fewest_warps(profile, gpu)
    blocks = blocks_there(least, gpu)
    many = f"{blocks} block{'s' if blocks > 1 else ''} of {least.warps} warp{'s' if least.warps > 1 else ''}"
    limit = "size of the grid" if is_limited_by_grid(least, gpu) else least.limited_by
    return f"{many}: {limit}" if limit else many


def _advice(result: WhyResult) -> Iterator[str]:
    paying = [each for each in _shown(result) if each.seconds > 0][:ADVISED]
    if not paying or result.distance_seconds <= 0:
        return
    change = f"Cause most worth removing: {_paying_most(result, paying[0])}"
    yield fill(change, NOTE_WIDTH, break_long_words=False, break_on_hyphens=False)
    for each in paying:
        yield f"  {each.cause.name}: {result.advice(each)}."
        text = source_line(*each.where) if each.where != PLACELESS else None
        if text:
            yield f"    {short_name(each.where[0]).rpartition('/')[2]}:{each.where[1]}  {text[:90]}"


def _paying_most(result: WhyResult, first: Attributed) -> str:
    slow, other = result.names
    name = first.cause.name
    if first.seconds > ALL_AND_MORE * result.distance_seconds:
        return f"{name}. Its cost exceeds the whole difference, because other causes favour {slow}."
    left = _us(result.slow_time.seconds - first.seconds)
    level = f"the {other}" if other == ROOFLINE else other
    return f"{name}. Reducing its cost to the level of {level} would lower the predicted time of {slow} to {left} us."


def _measured(result: WhyResult) -> Table:
    cells = []
    for name, time in zip(result.names, (result.slow_time, result.fast_time)):
        measured = result.measured_ms(name)
        predicted = 1e3 * time.seconds
        if name == ROOFLINE:
            continue
        ratio = UNKNOWN if measured is None else f"{predicted / measured:.2f}"
        cells.append([name, f"{predicted:,.4f}", UNKNOWN if measured is None else f"{measured:,.4f}", ratio])
    headers = ("variant", "predicted\nms", "measured\nms", "predicted /\nmeasured")
    return Table(headers, cells, (False, True, True, True))


def _notes(result: WhyResult) -> list[str]:
    notes = [
        "Times are predicted from the counted work, not measured; docs/why.md lists what the model leaves out. The "
        "costs add up to the difference. Instructions are counted in PTX; ptxas translates them to different machine "
        "instructions.",
    ]
    untiled = [profile.variant for profile in _profiles(result) if has_no_tiles(profile)]
    if untiled:
        notes.append(
            f"Kernels that load their inputs at least {MANY_TIMES} times and use each loaded element in fewer than "
            f"{FEW_PRODUCTS} multiplications, such as {' and '.join(untiled)}, typically take about four times as long "
            "as predicted."
        )
    verdicts = ", ".join(f"{profile.variant} {profile.verdict or 'not checked'}" for profile in _profiles(result))
    notes.append(f"Verdicts: {verdicts}.")
    merged = [each for each in _shown(result) if each.includes]
    notes += [
        f"{each.cause.name} includes its effects: {', '.join(part.name for part in each.includes)}." for each in merged
    ]
    if any(launch.used is None for launch in result.slow.launches):
        notes.append("ptxas is missing, so registers, spills, caches and the number of blocks that fit are not known.")
    if result.measured is not None:
        notes.append(
            f"Measured on {device_line(result.measured.device)}: median of runs of both variants in turns, with L2 "
            f"overwritten before each run. Predicted for: {result.gpu.name}."
        )
        notes += [f"{row.variant}: {row.reason}" for row in result.measured.rows if row.reason is not None]
    return notes


def _folded(name: str) -> str:
    """A variant's name, wrapped for a narrow header."""
    if len(name) <= 12:
        return name
    head, _, tail = name.rpartition("-")
    return f"{head}-\n{tail}" if head else name


def _us(seconds: float) -> str:
    value = seconds / MICRO
    return f"{value:,.1f}" if abs(value) < 1000 else f"{value:,.0f}"


def _figure(value: float) -> str:
    if abs(value) >= 100 or value == round(value):
        return f"{value:,.0f}"
    return f"{value:,.2f}" if abs(value) >= 1 else f"{value:.3f}"


# For programs --------------------------------------------------------------------------------------------------------


def _record(result: WhyResult, each: Attributed) -> dict[str, Any]:
    figures = result.figures(each.cause)
    distance = result.distance_seconds
    return {
        "variant": result.names[0],
        "other": result.names[1],
        "cause": each.cause.name,
        "unit": each.cause.unit,
        "figure": figures[0],
        "other_figure": figures[1],
        "cost_us": each.seconds / MICRO,
        "share": each.seconds / distance if distance else None,
        "file": short_name(each.where[0]) if each.where != PLACELESS else None,
        "line": each.where[1] if each.where != PLACELESS else None,
        "buffer": each.buffer or None,
        "includes": ", ".join(part.name for part in each.includes) or None,
        "advice": result.advice(each),
    }


def _document(result: WhyResult) -> dict[str, Any]:
    return {
        "problem": result.slow.problem.to_fields(),
        "regime": result.regime,
        "seed": result.seed,
        "gpu": result.gpu.name,
        "distance_us": result.distance_seconds / MICRO,
        "variants": [
            _time(name, time, profile, result.measured_ms(name))
            for name, time, profile in zip(
                result.names, (result.slow_time, result.fast_time), (result.slow, result.fast), strict=True
            )
        ],
        "causes": [_record(result, each) for each in result.causes],
    }


def _time(name: str, time: PredictedTime, profile: Profile | None, measured_ms: float | None) -> dict[str, Any]:
    hz = clock_hz(time.gpu)
    return {
        "variant": name,
        "predicted_us": time.seconds / MICRO,
        "measured_us": None if measured_ms is None else 1e3 * measured_ms,
        "busy_us": time.busy_cycles / hz / MICRO,
        "resources_us": {resource: cycles / hz / MICRO for resource, cycles in totals(time.shares).items()},
        "tail": time.weighted("tail"),
        "imbalance": time.weighted("imbalance"),
        "exposed_latency_us": sum(kernel.stalls.cycles() for kernel in time.kernels) / hz / MICRO,
        "launches": time.launches,
        "verdict": None if profile is None else profile.verdict,
        "reason": None if profile is None else profile.reason,
        "instructions": None if profile is None else _kinds(profile),
    }


def _kinds(profile: Profile) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for launch in profile.launches:
        for row in launch.instructions.counts:
            kind = found.setdefault(row.kind, {"warp_instructions": 0, "lane_instructions": 0})
            kind["warp_instructions"] += row.warps
            kind["lane_instructions"] += row.lanes
    return found
