"""The studies as functions, for notebooks and scripts; each returns the result of the command of the same name.

Every option of a command is a keyword, with `_` for `-`: `--seq-len 512 --sanitize` is `seq_len=512, sanitize=True`. An
error of the command line is a `UsageError` with the same one-line message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.options.call import Plugins, Variants, call
from harness.studies.commands import command_named
from harness.support.errors import UsageError
from harness.text.page.report_page import ReportPage
from harness.text.study_result import RunResult

if TYPE_CHECKING:
    from harness.execution.outcome import Comparison
    from harness.model.problem import BaseProblem
    from harness.model.variant import Variant
    from harness.text.study_result import StudyResult


def compare(
    problem: BaseProblem | None = None, variants: Variants = None, *, plugin: Plugins = (), **options: Any
) -> StudyResult[Comparison]:
    """Run every variant on one problem; check, count and rank them: `python -m harness compare`.

    `problem` is a `Problem`, or its fields are given as options (`seq_len=512`). `variants` are names, patterns, or
    `Variant` objects, which run in this process instead of one of their own; by default all. `plugin` names files that
    register variants. `.result` is the comparison with its rows, best first. Raises `UsageError`.
    """
    return call(command_named("compare"), problem, variants, plugin, options)


def run(variant: str | Variant, *, plugin: Plugins = (), **arrays_and_options: Any) -> RunResult[Comparison]:
    """Run one variant on your own arrays, and check it: `python -m harness run`.

    Pass an array per input, of NumPy, PyTorch or CuPy, or one that has `__dlpack__`:
    `run("fa2-cupy", q=q, k=k, v=v, mask="causal")`, each of shape (batch, heads, length, head_dim) or (length,
    head_dim), in float32, float16 or bfloat16. `.outputs["O"]` and `.outputs["lse"]` are arrays of the same library and
    `.result` is a comparison with one row. Kernels get C-contiguous copies; with `layout="given"`, they get Q, K and V
    with the strides of the arrays, such as those of a transposed tensor, and write O with its axes in Q's order.

    With `cu_seqlens_q` and `cu_seqlens_k`, whole numbers of shape (sequences + 1,), arrays are unpadded sequences as
    `flash_attn_varlen_func` takes them: (all rows, heads, head_dim), `.outputs["lse"]` (heads, all rows). With
    `operation="paged-attention"` and `cu_seqlens_q`, so are Q, O and lse. Raises `UsageError`, and
    `UnsupportedProblem` with the variant's reason.
    """
    run_on_arrays = command_named("run").call
    assert run_on_arrays is not None
    result = run_on_arrays(variant, plugin, arrays_and_options)
    assert isinstance(result, RunResult)
    return result


def traffic(
    variant: Variants = None,
    problem: BaseProblem | None = None,
    *,
    variants: Variants = None,
    plugin: Plugins = (),
    **options: Any,
) -> StudyResult[Any]:
    """Break down a variant's bytes by level, buffer and launch, and by source line with `lines=True`.

    With `sweep="q_len=512..4096"`, count the bytes of `variants` over a field; `.picture("bytes")` draws them, and
    `.picture("roofline")` shows a GPU's limits. `.result` is the account, or a tuple of points; names of byte counts
    give their level. Raises `UsageError`, and whatever ends the variant's run.
    """
    if variant is not None and variants is not None:
        raise UsageError("traffic(): variant and variants both select variants; leave out one")
    if variant is not None:
        return call(command_named("traffic"), problem, variant, plugin, options, selects_by="")
    return call(command_named("traffic"), problem, variants, plugin, options)


def fuzz(variants: Variants = None, *, plugin: Plugins = (), **options: Any) -> StudyResult[Any]:
    """Search for a problem on which a variant fails: `python -m harness fuzz`.

    `variants` are names only, since campaigns load variants in processes of their own. Write a variant of a notebook to
    a file (`%%writefile`) for `plugin`. `.result` is a tuple of campaigns, each with its minimized failure. Raises
    `UsageError`.
    """
    return call(command_named("fuzz"), None, variants, plugin, options, selects_by="")


def bench(
    problem: BaseProblem | None = None, variants: Variants = None, *, plugin: Plugins = (), **options: Any
) -> StudyResult[Any]:
    """Time variants and third-party kernels on a GPU: `python -m harness bench`. Raises `UsageError` without a GPU.

    With `sweep=`, times over a field; then `.picture()` draws time, bytes and intensity.
    """
    return call(command_named("bench"), problem, variants, plugin, options)


def history(variants: Variants = None, **options: Any) -> StudyResult[Any]:
    """Show how bytes, error and time changed over the results stored with `keep=True`: `python -m harness history`.

    `variants` are names or patterns. `.result` is a tuple of histories, each with a line per change; `.rows` has the
    stored rows, `.picture()` draws them. Raises `UsageError`.
    """
    return call(command_named("history"), None, variants, (), options, selects_by="")


def report(
    problem: BaseProblem | None = None, variants: Variants = None, *, plugin: Plugins = (), **options: Any
) -> ReportPage:
    """Show the results of the other studies for some variants on one problem as one page: `python -m harness report`.

    `.save("report.html")` writes it, and a notebook displays it; `.result` is the comparison in it. Raises
    `UsageError`.
    """
    shown = call(command_named("report"), problem, variants, plugin, options)
    assert isinstance(shown, ReportPage)
    return shown


def why(
    variant: str | Variant,
    other: str | Variant | None = None,
    problem: BaseProblem | None = None,
    *,
    plugin: Plugins = (),
    **options: Any,
) -> StudyResult[Any]:
    """Explain why `variant` is slower than `other`, or than the roofline: causes with predicted costs in microseconds.

    `python -m harness why`. `.result.causes` is sorted by cost, largest first; `docs/predicted-time.md` describes the
    model.
    Raises `UsageError`, and whatever ends a variant's run.
    """
    selected = [variant] if other is None else [variant, other]
    return call(command_named("why"), problem, selected, plugin, options, selects_by="")


def learn(step: str | int | None = None, **options: Any) -> StudyResult[Any]:
    """List the steps of the learning path, or run one: `python -m harness learn`.

    `step` is the number or name of a step. `predict="33MB"` is your prediction. `.picture()` is the step's picture, and
    `.result` has the counted figures. Raises `UsageError`, and whatever ends a kernel's run.
    """
    words = None if step is None else [str(step)]
    return call(command_named("learn"), None, words, (), options, selects_by="")


def check(step: str | int, file: str, **options: Any) -> StudyResult[Any]:
    """Check a solution of a step's task: `python -m harness learn check`.

    `.passed` is whether it is solved. Raises `UsageError` if the file cannot be read.
    """
    return call(command_named("learn"), None, ["check", str(step), file], (), options, selects_by="")
