"""Writes docs/hopper.md from the record."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import PagedProblem, Problem, SoftmaxProblem
from harness.model.operation import operation_named
from harness.model.problem import BaseProblem
from harness.support.gpu_data_sheets import gpu_like
from scripts.hopper.problems import GROUPS, Group

ROOT = Path(__file__).resolve().parent.parent.parent
RECORD = ROOT / "tests" / "hardware" / "hopper_h200.json"
PAGE = ROOT / "docs" / "hopper.md"
TEXT = Path(__file__).with_name("page.md")
"""The page without its tables and without what depends on the record."""
OPERATIONS = {"backward": "attention-backward", "pages": "paged-attention", "softmax": "softmax"}
FLASH_ATTENTION_4 = "flash-attn-4"
ABSENT = "The package `flash-attn-4` was not installed: its column is missing."


def problem_of(entry: Mapping[str, Any]) -> BaseProblem:
    """The problem of an entry."""
    kind = operation_named(OPERATIONS.get(entry["group"], "attention")).problem
    return kind.from_fields(entry["problem"])  # type: ignore[no-any-return]


def page_of(record: Mapping[str, Any]) -> str:
    """The page of a record."""
    about, text = record["about"], TEXT.read_text()
    versions = ", ".join(f"{name} {version}" for name, version in about["libraries"].items())
    facts = {
        "gpu": about["gpu"],
        "driver": about["driver"],
        "versions": versions,
        "cupy": f"CuPy {about['cupy']}, NVRTC {about['nvrtc']}",
        "copy": f"{about['copy_bytes_per_s'] / 1e12:.2f}",
        "matrix": f"{about['matrix_flops'] / 1e12:.0f}",
        "absent": "" if FLASH_ATTENTION_4 in about["libraries"] else f"{ABSENT}\n\n",
    }
    for name, value in facts.items():
        text = text.replace(f"{{{name}}}", value)
    for group in GROUPS:
        entries = [entry for entry in record["entries"] if entry["group"] == group.name]
        if not entries:
            text = _without_section(text, group.title)
        text = text.replace(f"{{table {group.name}}}", group_table(group, entries, about))
        text = text.replace(f"{{summary {group.name}}}", f"{summary(entries)} {measured_when(group, entries, about)}")
    return text


def _without_section(text: str, title: str) -> str:
    """The page without the section that has this title."""
    sections = text.split("\n## ")
    return "\n## ".join(section for section in sections if section.split("\n")[0] != title).rstrip() + "\n"


def fastest(entry: Mapping[str, Any], kind: str) -> tuple[float, str] | None:
    """Time in milliseconds and name of the fastest row of a kind, `variant` or `library`; None without one."""
    rows = entry.get("rows", {}).items()
    return min(((row["ms"][1], name) for name, row in rows if row["kind"] == kind and "ms" in row), default=None)


def ratio_of(entry: Mapping[str, Any]) -> float | None:
    """Speed of this project's fastest kernel / speed of the libraries' fastest; None without both."""
    ours, others = fastest(entry, "variant"), fastest(entry, "library")
    return None if ours is None or others is None else others[0] / ours[0]


def summary(entries: Sequence[Mapping[str, Any]]) -> str:
    """How many problems are won, the range of ratios, and which libraries are the fastest."""
    ratios = [ratio for entry in entries if (ratio := ratio_of(entry)) is not None]
    if not ratios:
        return "No ratios."
    won = sum(ratio > 1 for ratio in ratios)
    best = Counter(found[1] for entry in entries if (found := fastest(entry, "library")) is not None)
    libraries = ", ".join(f"`{name}` ({count})" for name, count in best.most_common())
    return (
        f"This project is faster in {won} of {len(ratios)}; the median of the ratios is "
        f"{statistics.median(ratios):.2f}, the least {min(ratios):.2f}, the largest {max(ratios):.2f}. The fastest "
        f"library is {libraries}."
    )


def measured_when(group: Group, entries: Sequence[Mapping[str, Any]], about: Mapping[str, Any]) -> str:
    """The dates of a group's figures, and the variants that have none yet."""
    dates = sorted({entry.get("date", about["date"]) for entry in entries})
    known = {name for entry in entries for name in entry.get("rows", {})}
    missing = ", ".join(f"`{name}`" for name in group.variants if name not in known)
    return f"Measured on {' and '.join(dates)}{f', before {missing} existed' if missing else ''}."


def group_table(group: Group, entries: Sequence[Mapping[str, Any]], about: Mapping[str, Any]) -> str:
    """A line per problem: its sizes, a figure per contender, and the ratio."""
    kinds = {name: row["kind"] for entry in entries for name, row in entry.get("rows", {}).items() if "ms" in row}
    own = [name for name in (*group.variants, *group.further) if name in kinds]
    names = [*own, *sorted(name for name, kind in kinds.items() if kind == "library")]
    describers = {"softmax": _of_softmax, "pages": _of_pages, "varlen": _of_sequences}
    describe = describers.get(group.name, _of_attention)
    lines = [[*describe(None), *(f"`{name}`" for name in names), "ratio"]]
    lines.append(["---"] * len(describe(None)) + ["---:"] * (len(names) + 1))
    for entry in entries:
        problem = problem_of(entry)
        rows = entry.get("rows", {})
        rate = _rate(group, problem, about)
        figures = [rate(rows[name]["ms"][1]) if "ms" in rows.get(name, {}) else "" for name in names]
        ratio = ratio_of(entry)
        lines.append([*describe(problem), *figures, "" if ratio is None else f"{ratio:.2f}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _rate(group: Group, problem: BaseProblem, about: Mapping[str, Any]) -> Callable[[float], str]:
    """A function from milliseconds to the figure of a group."""
    if group.name in ("decode", "pages"):
        gpu = gpu_like(about["gpu"])
        assert gpu is not None
        peak = gpu.memory_bytes_per_s
        return lambda ms: f"{100 * problem.compulsory_read_bytes / ms * 1e3 / peak:.0f} %"
    if group.name == "softmax":
        moved = 2 * problem.compulsory_read_bytes
        return lambda ms: f"{100 * moved / ms * 1e3 / about['copy_bytes_per_s']:.0f} %"
    return lambda ms: f"{problem.flops / ms / 1e9:.0f}"


def _heads(heads: int, kv_heads: int) -> str:
    return f"{heads}" if heads == kv_heads else f"{heads} over {kv_heads}"


def _of_attention(problem: BaseProblem | None) -> tuple[str, ...]:
    """Cells of sizes; headers without a problem."""
    if problem is None:
        return "head_dim", "batch", "heads", "keys", "mask"
    assert isinstance(problem, Problem)
    mask = problem.mask.shown if problem.mask.parts else "none"
    if "documents:" in mask:
        mask = "documents, causal" if "causal" in mask else "documents"
    words = [mask.replace("+", ", "), *(term.in_words(problem) for term in problem.terms)]
    heads = _heads(problem.heads, problem.kv_heads_count)
    return str(problem.head_dim), str(problem.batch), heads, f"{problem.kv_len:,}", ", ".join(words)


def _of_sequences(problem: BaseProblem | None) -> tuple[str, ...]:
    if problem is None:
        return "head_dim", "sequences", "rows", "heads", "mask", "memory"
    assert isinstance(problem, Problem)
    if problem.sequences is None:
        lengths, memory = (problem.q_len,) * problem.batch, problem.layout.text
    else:
        lengths, memory = problem.sequences.q_lengths, "unpadded"
    least, most = min(lengths), max(lengths)
    rows = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    within = problem.mask_within.text
    heads = _heads(problem.heads, problem.kv_heads_count)
    return str(problem.head_dim), str(len(lengths)), rows, heads, within, memory


def _of_pages(problem: BaseProblem | None) -> tuple[str, ...]:
    if problem is None:
        return "batch", "heads", "keys", "rows of a page"
    assert isinstance(problem, PagedProblem)
    heads = _heads(problem.heads, problem.kv_heads)
    least, most = min(problem.lengths), max(problem.lengths)
    keys = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    return str(len(problem.lengths)), heads, keys, str(problem.page_size)


def _of_softmax(problem: BaseProblem | None) -> tuple[str, ...]:
    if problem is None:
        return "rows", "columns"
    assert isinstance(problem, SoftmaxProblem)
    return f"{problem.rows:,}", f"{problem.columns:,}"
