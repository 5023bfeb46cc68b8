"""Prefetched replies of a planner: all that an attempt asks about one problem, but bytes, in one message.

A round trip per question would take longer than most of the answers.
"""

from __future__ import annotations

from harness.execution.isolation.replies import Json, Malformed, checked
from harness.model.problem import BaseProblem

ONCE = "plan"
"""The reply that is used once: each caller gets a plan of its own, which loads its modules anew."""


class PrefetchedReplies:
    """The replies of one variant's planner about one problem, until those about the next problem replace them."""

    def __init__(self) -> None:
        self.cautious = False
        """Whether questions are asked one by one from now on, so that the one that loses a process is known."""
        self._problem: BaseProblem | None = None
        self._tile: Json = None
        self._generation = 0
        self._replies: dict[str, Json] = {}

    def put(self, problem: BaseProblem, said: Json, generation: int) -> None:
        """Store what `Planner.attempt` answered; `generation` is the number of its process. Raises `Malformed`."""
        replies = checked(said, dict)
        self._problem, self._generation = problem, generation
        self._tile = replies.pop("tile", None)
        self._replies = replies

    def take(self, what: str, problem: BaseProblem, tile: Json, generation: int) -> Json:
        """The reply to a question about the same problem object; None if there is none."""
        if problem is not self._problem or generation != self._generation or what not in self._replies:
            return None
        if what == "plan" and tile != self._tile:
            return None
        reply = checked(self._replies.pop(what) if what == ONCE else self._replies[what], dict)
        if "error" not in reply and "answer" not in reply:
            raise Malformed(f"a reply of {reply!r:.200}")
        return reply
