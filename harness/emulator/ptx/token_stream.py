"""A position in the tokens of one PTX text, and what can be read there without knowing what it is for."""

from __future__ import annotations

import struct

from harness.emulator.ptx.instructions import Imm
from harness.emulator.ptx.lexer import Token
from harness.support.errors import CompileError


class TokenStream:
    """Reads tokens one after the other. Every error names the PTX line."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.at = 0

    def peek(self, ahead: int = 0) -> Token:
        """The token here, or so many tokens ahead."""
        index = self.at + ahead
        if index >= len(self.tokens):
            raise CompileError("the PTX ends in the middle of a statement")
        return self.tokens[index]

    def next(self) -> Token:
        """The token here; go on behind it."""
        token = self.peek()
        self.at += 1
        return token

    def accept(self, text: str) -> bool:
        """Whether this is the token here; if so, go on behind it."""
        if self.at < len(self.tokens) and self.tokens[self.at].text == text:
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        """The token here, which has to be this one."""
        token = self.next()
        if token.text != text:
            raise CompileError(f"PTX line {token.line}: expected '{text}', found '{token.text}'")
        return token

    def integer(self) -> int:
        """A whole number with an optional sign."""
        sign = -1 if self.accept("-") else 1
        token = self.next()
        if token.kind != "number":
            raise CompileError(f"PTX line {token.line}: expected a number, found '{token.text}'")
        return sign * _whole_number(token.text)

    def skip_to_line_end(self) -> None:
        """Pass over the rest of the line of the last token."""
        line = self.tokens[self.at - 1].line
        while self.at < len(self.tokens) and self.tokens[self.at].line == line:
            self.at += 1

    def literal(self) -> Imm:
        """A number of any kind; floating-point ones are 64 bits wide but for `0f`."""
        is_negative = self.peek().text == "-"
        token = self.peek(1) if is_negative else self.peek()
        if not is_negative and token.text[:2] in ("0f", "0F") and len(token.text) == 10:
            return Imm(int(self.next().text[2:], 16), 32)
        if not is_negative and token.text[:2] in ("0d", "0D") and len(token.text) == 18:
            return Imm(int(self.next().text[2:], 16), 64)
        if "." in token.text:
            self.at += 1 + is_negative
            number = -float(token.text) if is_negative else float(token.text)
            return Imm(struct.unpack("<Q", struct.pack("<d", number))[0], 64)
        return Imm(self.integer())

    def skip_section(self) -> None:
        """Pass over `.section name { ... }`."""
        while self.next().text != "{":
            pass
        depth = 1
        while depth:
            text = self.next().text
            depth += (text == "{") - (text == "}")


def _whole_number(text: str) -> int:
    text = text.rstrip("U")
    if text[:2] in ("0x", "0X"):
        return int(text, 16)
    if text[:2] in ("0b", "0B"):
        return int(text, 2)
    if len(text) > 1 and text[0] == "0":
        return int(text, 8)
    return int(text)
