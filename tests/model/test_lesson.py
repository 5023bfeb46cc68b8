"""The record of a step of the learning path: edits, and the files that it makes."""

from __future__ import annotations

import pytest

from harness.model.lesson import Edit, edited
from harness.support.errors import PluginError


def test_edits_are_applied_in_order() -> None:
    assert edited("a b c", (Edit(old="b", new="x y"), Edit(old="y c", new="z"))) == "a x z"


@pytest.mark.parametrize("text", ["nothing", "twice twice"])
def test_an_edit_has_to_fit_exactly_once(text: str) -> None:
    with pytest.raises(PluginError, match=r"replaces 'twice', which occurs [02] times"):
        Edit(old="twice", new="").apply(text)
