#!/usr/bin/env python
"""The pages of algorithms, README.md in variants/. Run as a script, it writes their costs and draws their schedules.

Such a page has a ```python block that computes `read` and `written`, the bytes of a variant without a mask, from the
names in `formula_names`, and a table of costs between two comments. schedule.svg in an algorithm's folder is one head,
or a few rows, of its problem.
"""

from __future__ import annotations

import argparse
import functools
import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from harness import (  # noqa: E402
    AppendProblem,
    Link,
    MlaProblem,
    PagedProblem,
    Problem,
    RingBackwardProblem,
    RingProblem,
    SoftmaxProblem,
    Traffic,
    TreeProblem,
    Variant,
)
from harness.emulator.executor import EmulatorExecutor  # noqa: E402
from harness.execution.planning.variant_calls import make_plan  # noqa: E402
from harness.execution.run_settings import RunSettings  # noqa: E402
from harness.execution.schedule.replay_recording import replay_of  # noqa: E402
from harness.model.discovery import discover  # noqa: E402
from harness.model.operation import draw_inputs  # noqa: E402
from harness.operations.attention_backward.problem import BackwardProblem  # noqa: E402
from harness.text.schedule_picture import schedule_svg  # noqa: E402
from tests.mutants.patching import VARIANTS, folder_of  # noqa: E402

AnyProblem = AppendProblem | MlaProblem | PagedProblem | Problem | RingProblem | SoftmaxProblem | TreeProblem
PROBLEMS: dict[str, Callable[..., AnyProblem]] = {
    "attention": Problem,
    "attention-backward": BackwardProblem,
    "kv-append": AppendProblem,
    "mla-decode": MlaProblem,
    "paged-attention": functools.partial(PagedProblem, lengths=(1040,) * 16, prefix=1024),
    "ring-attention": RingProblem,
    "ring-attention-backward": RingBackwardProblem,
    "softmax": SoftmaxProblem,
    "tree-attention": TreeProblem,
}
DRAWN_SIZES = {
    "attention": {"heads": 1},
    "attention-backward": {"heads": 1},
    "kv-append": {"kv_heads": 1, "lengths": (17, 150), "new_lengths": (5, 20)},
    "mla-decode": {"heads": 1, "lengths": (17, 150)},
    "paged-attention": {"heads": 1, "kv_heads": 1, "lengths": (150, 150), "prefix": 128},
    "ring-attention": {"heads": 1},
    "ring-attention-backward": {"heads": 1},
    "softmax": {"rows": 8},
    "tree-attention": {"heads": 1},
}
WITHOUT_A_PAGE = {"paged-attention": ROOT / "docs" / "paged.md"}
"""Operations whose tables of costs have the algorithms without a page of their own, too: what describes those."""
HALF_PRECISION = "float16"
_FORMULA = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_COSTS = re.compile(r"(?<=<!-- costs -->\n\n).*?(?=<!-- end of costs -->)", re.DOTALL)


@dataclass(frozen=True)
class Algorithm:
    """An algorithm that a page describes."""

    page: Path
    """README.md in its folder, or in that of its operation if one page describes all algorithms of that."""
    folder: Path
    """The folder of its kernels."""

    @property
    def picture(self) -> Path:
        """The picture of its schedule."""
        return self.folder / "schedule.svg"

    @functools.cached_property
    def variant(self) -> Variant:
        """Its CUDA variant."""
        return _cuda_variants()[self.folder]


@functools.cache
def _cuda_variants() -> dict[Path, Variant]:
    """The CUDA variant of each folder of kernels."""
    variants = [variant for variant in discover().registry if variant.backend == "cupy"]
    return {VARIANTS / folder_of(variant.algorithm): variant for variant in variants}


def algorithm_pages() -> list[Path]:
    """All pages of algorithms."""
    pages = (ROOT / "variants").rglob("README.md")
    return sorted(page for page in pages if "_path" not in page.parts)


@functools.cache
def algorithms() -> list[Algorithm]:
    """All algorithms that have a page."""
    found = []
    for page in algorithm_pages():
        describes_operation = page.parent.parent.name == "variants"
        folders = sorted(page.parent.iterdir()) if describes_operation else [page.parent]
        found += [Algorithm(page, each) for each in folders if each in _cuda_variants()]
    return found


def problem_of(variant: Variant, **sizes: int) -> AnyProblem:
    """The default problem, or one of other sizes: in float32, or with 16 bits if the variant supports nothing else."""
    problem = PROBLEMS[variant.operation]
    single = problem(**sizes)  # type: ignore[arg-type]
    return single if variant.supports(single) is None else problem(dtype=HALF_PRECISION, **sizes)  # type: ignore[arg-type]


def formula_names(algorithm: Algorithm, problem: AnyProblem) -> dict[str, object]:
    """What the formula of a page computes with: H is the number of heads in the batch, w the bytes of an element."""
    names = {"w": problem.itemsize_bytes, "ceil": math.ceil, "algorithm": algorithm.folder.name}
    if isinstance(problem, SoftmaxProblem):
        return {**names, "R": problem.rows, "C": problem.columns}
    p = problem
    if isinstance(p, PagedProblem):
        names |= {"H": p.heads, "H_kv": p.kv_heads, "lengths": p.lengths, "d": p.head_dim}
        return {**names, "P": p.prefix // p.page_size * p.page_size, "p": p.page_size}
    if isinstance(p, AppendProblem):
        names |= {"H": p.kv_heads, "lengths": p.lengths, "new_lengths": p.new_lengths, "log2": math.log2}
        return {**names, "d": p.head_dim}
    if isinstance(p, MlaProblem):
        return {**names, "H": p.heads, "lengths": p.lengths, "d": p.latent_dim, "e": p.head_dim}
    names |= {"N": p.devices}
    return {**names, "H": p.batch * p.heads, "N_q": p.q_len, "N_k": p.kv_len, "d": p.head_dim}


def formula_traffic(algorithm: Algorithm, problem: AnyProblem) -> Traffic:
    """The bytes by the page's formula."""
    names = formula_names(algorithm, problem)
    (formula,) = _FORMULA.findall(algorithm.page.read_text())
    exec(formula, names)  # a page of this repository
    links = tuple(starmap(Link, names.get("links", ())))  # type: ignore[call-overload]
    return Traffic(names["read"], names["written"], links=links)  # type: ignore[arg-type]


def _cost_row(variant: Variant, problem: AnyProblem) -> tuple[int, list[str]]:
    claimed, plan = variant.claim(problem), make_plan(variant, problem)  # type: ignore[misc]
    assert claimed is not None
    total = claimed.read_bytes + claimed.write_bytes
    sizes = (claimed.read_bytes, claimed.write_bytes, total, plan.allocated_bytes(problem))
    read, written, moved, allocated = (f"{size / 2**20:.2f}" for size in sizes)
    return total, [read, written, moved, f"{total / problem.compulsory_bytes:.2f}", allocated, str(len(plan.launches))]


def _linked_name(algorithm: Algorithm, page: Path) -> str:
    name = algorithm.variant.algorithm
    if algorithm.page != page:
        shown = "README.md" if algorithm.page.parent == algorithm.folder else "kernel.cu"
        return f"[{name}](../{algorithm.folder.name}/{shown})"
    if algorithm.folder == page.parent:
        return f"**{name}**"
    source = "kernel.cu" if (algorithm.folder / "kernel.cu").exists() else "__init__.py"
    return f"[{name}]({algorithm.folder.name}/{source})"


def costs(page: Path) -> str:
    """A table of all algorithms that have a page and support the page's problem, with the page's own in bold."""
    problem = problem_of(next(each.variant for each in algorithms() if each.page == page))
    rows, compared = [], list(algorithms())
    if page_of_others := WITHOUT_A_PAGE.get(problem.operation):
        having_one = {each.folder for each in compared}
        compared += [Algorithm(page_of_others, folder) for folder in _cuda_variants() if folder not in having_one]
    for each in compared:
        if each.variant.operation == problem.operation and each.variant.supports(problem) is None:
            total, cells = _cost_row(each.variant, problem)
            rows.append((total, each.folder.name, f"| {' | '.join([_linked_name(each, page), *cells])} |"))
    header = "| algorithm | read MiB | written MiB | total MiB | total / compulsory | allocated MiB | launches |"
    return "\n".join([header, "|---|" + "---:|" * 6, *(row for _, _, row in sorted(rows))])


def shown_costs(page: Path) -> str:
    """The table that stands in the page."""
    (table,) = _COSTS.findall(page.read_text())
    return str(table).rstrip("\n")


def drawn(algorithm: Algorithm) -> str:
    """The schedule of one head, or of a few rows, as an SVG."""
    variant = algorithm.variant
    problem = problem_of(variant, **DRAWN_SIZES[variant.operation])
    executor = EmulatorExecutor(RunSettings(arch=variant.arch or RunSettings.arch))
    return schedule_svg(replay_of(variant, problem, executor, draw_inputs(problem, "normal", 0)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the costs and pictures of the algorithms' pages anew.")
    parser.add_argument("pages", nargs="*", type=Path, metavar="README.md", help="only those of these pages")
    wanted = [path.resolve() for path in parser.parse_args().pages or algorithm_pages()]
    for written_page in wanted:
        table = f"{costs(written_page)}\n\n"
        written_page.write_text(_COSTS.sub(table, written_page.read_text()))
    for each in algorithms():
        if each.page in wanted:
            each.picture.write_text(drawn(each))
