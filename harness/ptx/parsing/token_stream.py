"""Reads tokens of a PTX text one by one, and reads names, numbers and lists from them."""

from __future__ import annotations

from harness.ptx.parsing.lexer import BYTES, PIECES, Token, words_of
from harness.support.errors import CompileError


class TokenStream:
    """A position in the tokens of a PTX text. Every error names the PTX line."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.at = 0

    def peek(self, ahead: int = 0) -> Token:
        """Return the token here, or the one `ahead` tokens further, without advancing."""
        index = self.at + ahead
        if index >= len(self.tokens):
            line = self.tokens[-1].line if self.tokens else 1
            raise CompileError(f"PTX line {line}: the PTX ends in the middle of a statement")
        token = self.tokens[index]
        if token.kind in PIECES:
            self._split(index)
            token = self.tokens[index]
        return token

    def next(self) -> Token:
        """Return the token here and advance."""
        token = self.peek()
        self.at += 1
        return token

    def accept(self, text: str) -> bool:
        """Whether the token here is `text`; advances if so."""
        if self.at >= len(self.tokens):
            return False
        token = self.tokens[self.at]
        if token.kind in PIECES and token.text.startswith(text):
            token = self.peek()
        if token.text == text:
            self.at += 1
            return True
        return False

    def _split(self, index: int) -> None:
        """Replace a token of several words by the tokens of its words."""
        whole = self.tokens[index]
        self.tokens[index : index + 1] = words_of(whole.text, whole.line)

    def expect(self, text: str) -> Token:
        """Return the token here, which must be `text`, and advance. Raises `CompileError` otherwise."""
        token = self.next()
        if token.text != text:
            raise CompileError(f"PTX line {token.line}: expected '{text}', found '{token.shown}'")
        return token

    def name(self) -> str:
        """Read the name of a register, a variable, a label or a function."""
        token = self.next()
        if token.kind != "word":
            raise CompileError(f"PTX line {token.line}: expected a name, found '{token.shown}'")
        return token.text

    def more(self, closing: str) -> bool:
        """Read what follows an item of a list: True for a comma, False for `closing`."""
        if self.accept(","):
            return True
        self.expect(closing)
        return False

    def integer(self) -> int:
        """Read an integer with an optional sign."""
        sign = -1 if self.accept("-") else 1
        return sign * whole_number(self.next())

    def count(self) -> int:
        """Read an integer without a sign."""
        return whole_number(self.next())

    def skip_to_line_end(self) -> None:
        """Skip the rest of the last token's line."""
        line = self.tokens[self.at - 1].line
        while self.at < len(self.tokens) and self.tokens[self.at].line == line:
            self.at += 1

    def skip_section(self) -> None:
        """Skip `.section name { ... }`."""
        while self.next().text != "{":
            pass
        depth = 1
        while depth:
            if self.at < len(self.tokens) and self.tokens[self.at].kind == BYTES:  # which contains no brace
                self.at += 1
                continue
            text = self.next().text
            depth += (text == "{") - (text == "}")


_BASES = {"0x": 16, "0X": 16, "0b": 2, "0B": 2}
_MOST_DIGITS = 66
"""Maximum digits: a 64-bit number in base 2, with its prefix."""


def whole_number(token: Token) -> int:
    """Return the value of a token that must be an integer of at most 64 bits (PTX ISA 4.5.1). Raises `CompileError`."""
    text = token.text.removesuffix("U")
    base = _BASES.get(text[:2], 8 if len(text) > 1 and text[0] == "0" else 10)
    if token.kind != "number" or not _is_written_in(base, text):
        raise CompileError(f"PTX line {token.line}: expected a number, found '{token.shown}'")
    value = int(text, base) if len(text) <= _MOST_DIGITS else 1 << 64
    if value >= 1 << 64:
        raise CompileError(f"PTX line {token.line}: {token.shown} does not fit into 64 bits")
    return value


def _is_written_in(base: int, text: str) -> bool:
    digits = text[2:] if base in (2, 16) else text
    return bool(digits) and all(digit in "0123456789abcdef"[:base] for digit in digits.lower())
