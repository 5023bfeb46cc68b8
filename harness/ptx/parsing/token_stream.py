"""A position in the tokens of one PTX text, and what can be read there without knowing what it is for."""

from __future__ import annotations

from harness.ptx.parsing.lexer import BYTES, PIECES, Token, words_of
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
            line = self.tokens[-1].line if self.tokens else 1
            raise CompileError(f"PTX line {line}: the PTX ends in the middle of a statement")
        token = self.tokens[index]
        if token.kind in PIECES:
            self._split(index)
            token = self.tokens[index]
        return token

    def next(self) -> Token:
        """The token here; go on behind it."""
        token = self.peek()
        self.at += 1
        return token

    def accept(self, text: str) -> bool:
        """Whether this is the token here; if so, go on behind it."""
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
        """What is not read in one piece becomes the tokens that it consists of."""
        whole = self.tokens[index]
        self.tokens[index : index + 1] = words_of(whole.text, whole.line)

    def expect(self, text: str) -> Token:
        """The token here, which has to be this one."""
        token = self.next()
        if token.text != text:
            raise CompileError(f"PTX line {token.line}: expected '{text}', found '{token.shown}'")
        return token

    def name(self) -> str:
        """The word here: what a register, a variable, a label or a function is called."""
        token = self.next()
        if token.kind != "word":
            raise CompileError(f"PTX line {token.line}: expected a name, found '{token.shown}'")
        return token.text

    def more(self, closing: str) -> bool:
        """Behind an item of a list: whether a comma says that another follows, or else the list is closed here."""
        if self.accept(","):
            return True
        self.expect(closing)
        return False

    def integer(self) -> int:
        """A whole number with an optional sign."""
        sign = -1 if self.accept("-") else 1
        return sign * whole_number(self.next())

    def count(self) -> int:
        """How many there are of something: a whole number without a sign."""
        return whole_number(self.next())

    def skip_to_line_end(self) -> None:
        """Pass over the rest of the line of the last token."""
        line = self.tokens[self.at - 1].line
        while self.at < len(self.tokens) and self.tokens[self.at].line == line:
            self.at += 1

    def skip_section(self) -> None:
        """Pass over `.section name { ... }`."""
        while self.next().text != "{":
            pass
        depth = 1
        while depth:
            if self.at < len(self.tokens) and self.tokens[self.at].kind == BYTES:  # in which there is no brace
                self.at += 1
                continue
            text = self.next().text
            depth += (text == "{") - (text == "}")


_BASES = {"0x": 16, "0X": 16, "0b": 2, "0B": 2}
_MOST_DIGITS = 66
"""Length of a number of 64 bits in base 2, with its prefix."""


def whole_number(token: Token) -> int:
    """The value of a token that is to be a whole number of at most 64 bits (PTX ISA 4.5.1)."""
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
