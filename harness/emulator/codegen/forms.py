"""Parses an instruction's modifiers such that none is ignored silently."""

from __future__ import annotations

from harness.ptx.instructions import Instruction
from harness.ptx.types import TYPES, PtxType


class Form:
    """Consumes modifiers one by one; `end` raises `UnsupportedInstruction` if one is left."""

    def __init__(self, instruction: Instruction) -> None:
        self._instruction = instruction
        self._left = list(instruction.modifiers)

    def flag(self, name: str) -> bool:
        """Consume the modifier, and return whether it was present."""
        if name in self._left:
            self._left.remove(name)
            return True
        return False

    def choice(self, *names: str) -> str | None:
        """Consume and return the first of these modifiers that is present; None if there is none."""
        for name in self._left:
            if name in names:
                self._left.remove(name)
                return name
        return None

    def types(self) -> list[PtxType]:
        """Consume all type modifiers and return them in order."""
        found = [TYPES[m] for m in self._left if m in TYPES]
        self._left = [m for m in self._left if m not in TYPES]
        return found

    def type(self, allowed: str = "") -> PtxType:
        """Consume the only type modifier. If `allowed` lists names, it has to be one of them."""
        found = self.types()
        if len(found) != 1:
            raise self._instruction.unsupported("it needs exactly one type")
        if allowed and found[0].name not in allowed.split():
            raise self._instruction.unsupported(f"type '.{found[0].name}'")
        return found[0]

    def rest(self) -> list[str]:
        """The modifiers that are not consumed yet."""
        return list(self._left)

    def end(self) -> None:
        """Require that all modifiers were consumed."""
        if self._left:
            raise self._instruction.unsupported(f"modifier '.{self._left[0]}'")
