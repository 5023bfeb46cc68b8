"""Reading an instruction's modifiers so that none is ever passed over."""

from __future__ import annotations

from harness.ptx.instructions import Instruction
from harness.ptx.types import TYPES, PtxType


class Form:
    """Takes modifiers one by one; `end` raises `UnsupportedInstruction` where one is left."""

    def __init__(self, instruction: Instruction) -> None:
        self._instruction = instruction
        self._left = list(instruction.modifiers)

    def flag(self, name: str) -> bool:
        """Whether the modifier is there."""
        if name in self._left:
            self._left.remove(name)
            return True
        return False

    def choice(self, *names: str) -> str | None:
        """The first of these modifiers that is there."""
        for name in self._left:
            if name in names:
                self._left.remove(name)
                return name
        return None

    def types(self) -> list[PtxType]:
        """All type modifiers, in order."""
        found = [TYPES[m] for m in self._left if m in TYPES]
        self._left = [m for m in self._left if m not in TYPES]
        return found

    def type(self, allowed: str = "") -> PtxType:
        """The only type modifier; where `allowed` lists names, it has to be one of them."""
        found = self.types()
        if len(found) != 1:
            raise self._instruction.unsupported("it needs exactly one type")
        if allowed and found[0].name not in allowed.split():
            raise self._instruction.unsupported(f"type '.{found[0].name}'")
        return found[0]

    def rest(self) -> list[str]:
        """Modifiers not taken yet."""
        return list(self._left)

    def end(self) -> None:
        """All modifiers were understood."""
        if self._left:
            raise self._instruction.unsupported(f"modifier '.{self._left[0]}'")
