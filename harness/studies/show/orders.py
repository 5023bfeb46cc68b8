"""Determines the order in which a variant adds, for each of its operation's sums, by running it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.execution.planning.variant_calls import make_plan
from harness.execution.protocol import Executor
from harness.model.arithmetic.summation_tree import SummationTree
from harness.model.array_types import Arrays
from harness.model.operation import OrderedSum, operation_of
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.support.errors import OrderNotRevealed, SandboxError, UnsupportedProblem, UsageError


@dataclass(frozen=True)
class RevealedOrder:
    """The order of one sum of a variant."""

    sum: OrderedSum
    """The sum."""
    tree: SummationTree | None
    """The order; None if it could not be determined."""
    reason: str | None = None
    """Why it could not be determined."""


@dataclass(frozen=True)
class VariantOrders:
    """The orders of a variant's sums."""

    variant: str
    """Name of the variant."""
    orders: tuple[RevealedOrder, ...]
    """Orders of the operation's sums; empty if the variant did not run."""
    reason: str | None = None
    """Why it did not run; None if it did."""


def reveal_orders(
    variant: Variant, problem: BaseProblem, executor: Executor, known: Sequence[VariantOrders] = ()
) -> VariantOrders:
    """Determine the order of each sum of the operation. If one cannot be determined, its entry has the reason.

    Orders of the variants in `known` are tried first. Raises `UsageError` if the problem has no such sums, and whatever
    planning, compiling and running raise.
    """

    def run(other: BaseProblem, inputs: Arrays) -> Arrays:
        return executor.run(other, make_plan(variant, other, executor.device.arch), inputs).outputs

    guesses: dict[str, dict[SummationTree, None]] = {}
    for order in (order for each in known for order in each.orders):
        if order.tree is not None:
            guesses.setdefault(order.sum.name, {})[order.tree] = None
    operation = operation_of(problem)
    if operation.ordered_sums is None:
        raise UsageError(f"--order shows the order of sums, and it supports none of {operation.name}")
    sums = operation.ordered_sums(problem, run, {name: list(trees) for name, trees in guesses.items()})
    return VariantOrders(variant.name, tuple(_revealed(each) for each in sums))


def reveal_if_it_runs(
    variant: Variant, problem: BaseProblem, executor: Executor, known: Sequence[VariantOrders] = ()
) -> VariantOrders:
    """Like `reveal_orders`, but a variant that does not run is returned with the reason."""
    try:
        return reveal_orders(variant, problem, executor, known)
    except UnsupportedProblem as refusal:
        return VariantOrders(variant.name, (), refusal.reason)
    except SandboxError as error:
        return VariantOrders(variant.name, (), str(error))


def _revealed(ordered: OrderedSum) -> RevealedOrder:
    try:
        return RevealedOrder(ordered, ordered.reveal())
    except OrderNotRevealed as reason:
        return RevealedOrder(ordered, None, str(reason))
