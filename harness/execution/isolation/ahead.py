"""Replies that a planner gave before their questions are asked: all that an attempt asks but bytes, in one message.

Each question on its own wakes the other process and waits for it, which takes longer than most of the answers.
"""

from __future__ import annotations

from harness.execution.isolation.replies import Json, Malformed, checked
from harness.model.problem import BaseProblem

ONCE = "plan"
"""What is not answered twice: every plan is made for whoever asked, and loads its modules anew."""


class Ahead:
    """What one variant's planner said about one problem; the next problem's replies take their place."""

    def __init__(self) -> None:
        self.cautious = False
        """Whether one question at a time is asked from now on: a process was lost, and who is to blame has to show."""
        self._problem: BaseProblem | None = None
        self._tile: Json = None
        self._generation = 0
        self._replies: dict[str, Json] = {}

    def put(self, problem: BaseProblem, said: Json, generation: int) -> None:
        """Keep what `Planner.attempt` said, in the process of that number. Raises `Malformed`."""
        replies = checked(said, dict)
        self._problem, self._generation = problem, generation
        self._tile = replies.pop("tile", None)
        self._replies = replies

    def take(self, what: str, problem: BaseProblem, tile: Json, generation: int) -> Json:
        """The reply to this question about this very problem; None where it has to be asked."""
        if problem is not self._problem or generation != self._generation or what not in self._replies:
            return None
        if what == "plan" and tile != self._tile:
            return None
        reply = checked(self._replies.pop(what) if what == ONCE else self._replies[what], dict)
        if "error" not in reply and "answer" not in reply:
            raise Malformed(f"a reply of {reply!r:.200}")
        return reply
