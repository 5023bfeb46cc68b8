"""Caches a planner's replies to all questions of one attempt, except the claimed traffic, fetched in one message.

One round trip per question would take longer than most answers.
"""

from __future__ import annotations

from harness.execution.isolation.replies import Json, Malformed, checked
from harness.model.problem import BaseProblem

ONCE = "plan"
"""The question whose reply is used only once, because each caller needs a new plan, whose modules are loaded again."""


class PrefetchedReplies:
    """Replies of one variant's planner about one problem, until replies about the next problem replace them."""

    def __init__(self) -> None:
        self.cautious = False
        """Whether prefetching is off, so that the question that crashes a process can be identified."""
        self._problem: BaseProblem | None = None
        self._tile: Json = None
        self._generation = 0
        self._replies: dict[str, Json] = {}

    def put(self, problem: BaseProblem, said: Json, generation: int) -> None:
        """Store the result of `Planner.attempt`; `generation` is the number of the process. Raises `Malformed`."""
        replies = checked(said, dict)
        self._problem, self._generation = problem, generation
        self._tile = replies.pop("tile", None)
        self._replies = replies

    def take(self, what: str, problem: BaseProblem, tile: Json, generation: int) -> Json:
        """Return the reply to a question about the same problem object, or None if there is none."""
        if problem is not self._problem or generation != self._generation or what not in self._replies:
            return None
        if what == "plan" and tile != self._tile:
            return None
        reply = checked(self._replies.pop(what) if what == ONCE else self._replies[what], dict)
        if "error" not in reply and "answer" not in reply:
            raise Malformed(f"a reply of {reply!r:.200}")
        return reply
