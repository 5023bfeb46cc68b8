"""Reads PTX targets, such as `sm_90` and `sm_90a`, and determines which architectures run them."""

from __future__ import annotations

import re
from typing import NamedTuple

_NAME = r"sm_(\d{2,3})([af]?)"
_TARGET = re.compile(_NAME, re.ASCII)
_DIRECTIVE = re.compile(rf"^[ \t]*\.target\s+({_NAME})\b", re.MULTILINE | re.ASCII)


class Target(NamedTuple):
    """An architecture, with or without architecture-specific features."""

    name: str
    """Name, such as `sm_90a`."""
    number: int
    """Ten times the major compute capability, plus the minor one."""
    suffix: str
    """`a` for features of this architecture, `f` for those of its family, otherwise empty."""

    @classmethod
    def named(cls, name: str) -> Target | None:
        """Return the target of this name; None if the name is invalid."""
        match = _TARGET.fullmatch(name)
        return match and cls(name, int(match[1]), match[2])

    @classmethod
    def of(cls, ptx: str) -> Target | None:
        """Return the target in a module's `.target`; None without this directive."""
        match = _DIRECTIVE.search(ptx)
        return match and cls(match[1], int(match[2]), match[3])

    def runs_on(self, here: Target) -> bool:
        """Whether code for this target runs on the architecture `here` (PTX ISA, `.target`)."""
        if self.suffix == "a":
            return self.number == here.number
        if self.suffix == "f":
            return self.number <= here.number and self.number // 10 == here.number // 10
        return self.number <= here.number


def may_overlap_launches(arch: str) -> bool:
    """Whether GPUs of this architecture can begin a launch before the previous one has ended (`griddepcontrol`)."""
    target = Target.named(arch)
    return target is not None and target.number >= 90
