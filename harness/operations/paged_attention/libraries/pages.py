"""Page tables and pools without what lies behind the last keys, for libraries that may read it. Made once."""

from __future__ import annotations

from typing import Any

from harness.model.contenders.torch_contender import Tensors
from harness.operations.paged_attention.problem import PagedProblem
from harness.support.errors import UnsupportedProblem


def require_plain(name: str, problem: PagedProblem) -> None:
    """Raise `UnsupportedProblem` for windows, score terms and sinks, which are not passed to the library."""
    others = [feature for feature in problem.features if feature != "causal"]
    if others:
        raise UnsupportedProblem(name, f"not passed to it: {' and '.join(others)}")


def table_of_keys(torch: Any, problem: PagedProblem, given: Tensors) -> Any:
    """The page table, in which entries behind a sequence's last page name page 0."""
    return torch.where(_keys_of_pages(torch, problem, given) > 0, given["table"], 0)


def pool_of_keys(torch: Any, problem: PagedProblem, given: Tensors) -> Tensors:
    """Copies of K and V with zeros in rows that are keys of no sequence."""
    lengths = given["lengths"]
    filled, table = _keys_of_pages(torch, problem, given), table_of_keys(torch, problem, given)
    held = torch.zeros(problem.pool_pages, dtype=torch.int64, device=lengths.device)
    held.scatter_reduce_(0, table.flatten().to(torch.int64), filled.flatten().to(torch.int64), "amax")
    is_key = torch.arange(problem.page_size, device=lengths.device) < held[:, None]
    return {name: torch.where(is_key[:, None, :, None], given[name], 0) for name in "KV"}


def _keys_of_pages(torch: Any, problem: PagedProblem, given: Tensors) -> Any:
    """How many keys of a sequence lie in each of its pages, (sequences, entries of the table)."""
    lengths = given["lengths"]
    places = torch.arange(problem.table_shape[1], device=lengths.device)[None, :]
    return torch.clamp(lengths[:, None] - places * problem.page_size, 0, problem.page_size)
