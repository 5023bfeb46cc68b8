"""Attention in words: fields of a problem in headlines, and what is unusual about a case."""

from __future__ import annotations

from collections.abc import Sequence

from harness.model.cases.case import Case
from harness.model.operation import field_in_words as plain_words
from harness.operations.attention.masks import NO_MASK
from harness.operations.attention.problem import Problem, default_scale, heads_in_words


def field_in_words(problem: Problem, name: str) -> list[str]:
    """One field for a headline, such as `heads 8`; nothing where it has its default."""
    if name == "mask":
        return [problem.mask.shown] if problem.mask.parts else []
    if name == "softcap":
        return [] if problem.softcap is None else [f"softcap {problem.softcap:g}"]
    if name in ("dropout", "dropout_seed"):
        said = f"dropout {problem.dropout:.4g}" if name == "dropout" else f"dropout seed {problem.dropout_seed}"
        return [said] if problem.dropout else []
    if name in ("alibi", "sinks"):
        return [{"alibi": "ALiBi"}.get(name, name)] if getattr(problem, name) else []
    if name == "scale" or (name == "kv_heads" and problem.kv_heads == problem.heads):
        return []
    return plain_words(problem, name)


def peculiarities(case: Case, tiles: Sequence[int]) -> list[str]:
    """What a case has beyond the plainest, in words; `tiles` of rows and of keys per head."""
    problem = case.problem
    takes = []
    for count, length, what in ((tiles[0], problem.q_len, "rows"), (tiles[1], problem.kv_len, "keys")):
        if length > 1:
            takes.append(f"{count} tiles of {what}" if count > 1 else f"{length} {what}")
    if problem.batch > 1:
        takes.append(f"batch {problem.batch}")
    takes += heads_in_words(problem)
    if problem.mask != NO_MASK:
        named = "a causal mask" if problem.mask.text == "causal" else f"the mask {problem.mask}"
        takes.append(named + (", rows that see no key" if (problem.keys_seen == 0).any() else ""))
    if problem.softcap is not None:
        takes.append(f"softcap {problem.softcap:g}")
    takes += [name for name, is_on in (("ALiBi", problem.alibi), ("sinks", problem.sinks)) if is_on]
    takes += [f"dropout {problem.dropout:.4g}"] if problem.dropout else []
    if problem.dtype != "float32":
        takes.append(problem.dtype)
    if problem.scale != default_scale(problem.head_dim):
        takes.append(f"scale {problem.tau:g}")
    return takes
