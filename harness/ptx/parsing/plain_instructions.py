"""Reads instructions that are a single token. Forms and operands are cached, because a kernel repeats few of them."""

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
    """Part of the parser that reads tokens of whole instructions, if they have a common form."""

    def __init__(self, tokens: list[Token]) -> None:
        super().__init__(tokens)
        self._forms: dict[str, tuple[str, tuple[str, ...]]] = {}
        """Opcode and modifiers of each form, such as `fma.rn.f32`."""
        self._operands: list[dict[str, Operand]] = []
        """Meaning of each operand's text, for each of the enclosing scopes."""

    def operand(self, depth: int) -> Operand:
        """Read the operand here, nested in `depth` lists. Raises `CompileError`."""
        raise NotImplementedError

    def resolve(self, name: str) -> str:
        """Return the name in the function of `name` in this scope."""
        raise NotImplementedError

    def plain_instruction(self, whole: Token, source: SourceLine | None) -> Instruction | None:
        """Read the token; None if it has to be read word by word."""
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
        """Read a register, an address in a register, or a number as compilers write it; None for anything else."""
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
        """Read the operand that consists of this whole text, in the same way as word by word; None if that fails."""
        before = self.tokens, self.at
        self.tokens, self.at = [*words_of(text, line), Token("mark", _END, line)], 0
        try:
            operand = self.operand(0)
            return operand if self.at == len(self.tokens) - 1 else None
        except CompileError:
            return None  # it is read word by word, which raises the error
        finally:
            self.tokens, self.at = before
