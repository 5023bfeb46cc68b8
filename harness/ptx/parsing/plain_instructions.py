"""Instructions that stand in one piece. Forms and operands are looked up: a kernel has few, again and again."""

from __future__ import annotations

import re

from harness.ptx.instructions import Address, Imm, Instruction, Operand, Reg, SourceLine
from harness.ptx.parsing.declarations import Declarations
from harness.ptx.parsing.lexer import Token, words_of
from harness.support.errors import CompileError

_PARTS = re.compile(r"(?:@(!?)(\S+)[ \t]+)?([^ \t;]+)([^;]*);")
_OPERAND = re.compile(r"(?:\[[^\[\]]*\]|\{[^{}]*\}|[^,\[\]{}])+")
_REGISTER = r"%[A-Za-z0-9_$]+"
_INTEGER = r"-?(?:0|[1-9]\d{0,17})"
_COMMON = re.compile(
    rf"(?P<register>{_REGISTER})|\[(?P<base>{_REGISTER})(?:\+(?P<offset>{_INTEGER}))?\]"
    rf"|(?P<integer>{_INTEGER})|0[fF](?P<bits>[0-9a-fA-F]{{8}})",
    re.ASCII,
)
_END = ";"


class PlainInstructions(Declarations):
    """The part of the parser that reads `Token`s of whole instructions, as far as it understands them."""

    def __init__(self, tokens: list[Token]) -> None:
        super().__init__(tokens)
        self._forms: dict[str, tuple[str, tuple[str, ...]]] = {}
        """Such as `fma.rn.f32` -> opcode and modifiers."""
        self._operands: list[dict[str, Operand]] = []
        """Text of an operand -> what it means, in each of the scopes that we are in."""

    def operand(self, depth: int) -> Operand:
        """The operand here, which is within so many others. Raises `CompileError`."""
        raise NotImplementedError

    def resolve(self, name: str) -> str:
        """What a name that the text has is called in the function."""
        raise NotImplementedError

    def plain_instruction(self, whole: Token, source: SourceLine | None) -> Instruction | None:
        """What the token says; None where it has to be read word by word."""
        parts = _PARTS.fullmatch(whole.text)
        assert parts is not None
        negated, guard, form, listed = parts.groups()
        opcode, modifiers = self._forms.get(form) or self._form(form)
        operands: tuple[Operand, ...] = ()
        if listed and not listed.isspace():
            texts = _OPERAND.findall(listed)
            if ",".join(texts) != listed:
                return None
            found = [self._known_operand(text.strip(), whole.line) for text in texts]
            operands = tuple(operand for operand in found if operand is not None)
            if len(operands) != len(found):
                return None
        predicate = Reg(self.resolve(guard)) if guard else None
        return Instruction(opcode, modifiers, operands, predicate, bool(negated), whole.line, source)

    def _form(self, form: str) -> tuple[str, tuple[str, ...]]:
        opcode, *modifiers = form.split(".")
        found = self._forms[form] = opcode, tuple(modifiers)
        return found

    def _known_operand(self, text: str, line: int) -> Operand | None:
        known = self._operands[-1]
        operand = known.get(text)
        if operand is None:
            operand = self._common(text) or self._read(text, line)
            if operand is not None:
                known[text] = operand
        return operand

    def _common(self, text: str) -> Operand | None:
        """A register, an address in one, or a number as compilers write them; None where it is anything else."""
        match = _COMMON.fullmatch(text)
        if match is None:
            return None
        register, base, offset, integer, bits = match.groups()
        if register:
            return Reg(self.resolve(register))
        if base:
            return Address(Reg(self.resolve(base)), int(offset or 0))
        return Imm(int(integer)) if integer else Imm(int(bits, 16), 32)

    def _read(self, text: str, line: int) -> Operand | None:
        """The operand that is all of this text, as it would be read among the others."""
        before = self.tokens, self.at
        self.tokens, self.at = [*words_of(text, line), Token("mark", _END, line)], 0
        try:
            operand = self.operand(0)
            return operand if self.at == len(self.tokens) - 1 else None
        except CompileError:
            return None  # it is read word by word, and told there
        finally:
            self.tokens, self.at = before
