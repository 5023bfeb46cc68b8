"""Evaluates constant expressions (PTX ISA 4.5.4 to 4.5.6): numbers and C operators, in 64 bits.

Where ptxas and the ISA differ, this module follows ptxas: a shift uses the low six bits of its count, a remainder is
unsigned, and a conditional has the type of the selected operand.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable
from typing import NamedTuple

from harness.ptx.instructions import Imm
from harness.ptx.parsing.lexer import Token
from harness.ptx.parsing.token_stream import TokenStream, whole_number
from harness.support.errors import CompileError

WARP_SZ = "WARP_SZ"
_PRECEDENCE = {
    "||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, ">": 7, "<=": 7, ">=": 7, "<<": 8, ">>": 8,
    "+": 9, "-": 9, "*": 10, "/": 10, "%": 10,
}  # fmt: skip
_UNARY = ("-", "+", "!", "~")
_CASTS = (".s64", ".u64")
_DEEPEST = 64
_BITS = (1 << 64) - 1
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
}  # fmt: skip
_ARITHMETIC: dict[str, Callable[[float, float], float]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_BITWISE: dict[str, Callable[[int, int], int]] = {"&": operator.and_, "|": operator.or_, "^": operator.xor}


class Constant(NamedTuple):
    """A value and its type: `s64`, `u64` or `f64`."""

    value: int | float
    kind: str

    @classmethod
    def of(cls, value: int, kind: str) -> Constant:
        """Create an integer, wrapped around at 64 bits."""
        value &= _BITS
        return cls(value - (1 << 64) if kind == "s64" and value >> 63 else value, kind)

    @property
    def bits(self) -> int:
        """The 64 bits of an integer as an unsigned integer."""
        return int(self.value) & _BITS


class ConstantExpressions(TokenStream):
    """Part of the parser that reads constants."""

    def literal(self) -> Imm:
        """Read a constant expression. Floating-point values have 64 bits, except for a single `0f` literal."""
        token = self.peek()
        if _is_hexadecimal(token, "f", 8):
            return Imm(int(self.next().text[2:], 16), 32)
        constant = self._expression(0, 0)
        if constant.kind == "f64":
            return Imm(struct.unpack("<Q", struct.pack("<d", constant.value))[0], 64)
        return Imm(int(constant.value))

    def constant_integer(self) -> int:
        """Read a constant expression whose value is an integer."""
        token = self.peek()
        literal = self.literal()
        if literal.float_bits:
            raise CompileError(f"PTX line {token.line}: expected a number, found '{token.shown}'")
        return literal.value

    def offset(self) -> int:
        """Read an address offset: an expression after `+`, or one that begins with `-`. 0 if there is none."""
        return self.constant_integer() if self.accept("+") or self.peek().text == "-" else 0

    def begins_constant(self) -> bool:
        """Whether a constant expression begins here. One in parentheses looks like the arguments of a call."""
        token = self.peek()
        if token.text == "!":
            following = self.peek(1)
            return following.kind == "number" or following.text in ("(", WARP_SZ, *_UNARY)
        return token.kind == "number" or token.text in ("-", "+", "~", "(", WARP_SZ)

    def _expression(self, least: int, depth: int) -> Constant:
        """Read an expression of operators with at least this precedence, nested this deep."""
        line = self.peek().line
        if depth > _DEEPEST:
            raise CompileError(f"PTX line {line}: a constant expression of more than {_DEEPEST} levels")
        left = self._unary(depth)
        while True:
            sign, length = self._operator()
            if sign == "?" and least == 0:
                self.next()
                chosen = self._expression(0, depth + 1)
                self.expect(":")
                other = self._expression(0, depth + 1)
                _require(line, left.kind != "f64", "a condition that is no whole number")
                _require(line, (chosen.kind == "f64") == (other.kind == "f64"), "whole numbers beside others")
                left = chosen if left.value else other
                continue
            precedence = _PRECEDENCE.get(sign, -1)
            if precedence < max(least, 1):
                return left
            for _ in range(length):
                self.next()
            left = _combined(line, sign, left, self._expression(precedence + 1, depth + 1))

    def _operator(self) -> tuple[str, int]:
        """Return the operator here and its number of tokens; an empty text if there is none."""
        if self.at >= len(self.tokens):
            return "", 0
        first = self.peek().text
        if first not in ("<", ">", "=", "!", "&", "|"):
            return first, 1
        pair = first + (self.peek(1).text if self.at + 1 < len(self.tokens) else "")
        return (pair, 2) if pair in _PRECEDENCE else (first, 1)

    def _unary(self, depth: int) -> Constant:
        token = self.next()
        if token.text in _UNARY:
            if depth > _DEEPEST:
                raise CompileError(f"PTX line {token.line}: a constant expression of more than {_DEEPEST} levels")
            return _applied(token, self._unary(depth + 1))
        if token.text == "(":
            if self.peek().text in _CASTS:
                kind = self.next().text[1:]
                self.expect(")")
                operand = self._unary(depth + 1)
                _require(token.line, operand.kind != "f64", "a cast of what is no whole number")
                return Constant.of(int(operand.value), kind)
            inner = self._expression(0, depth + 1)
            self.expect(")")
            return inner
        if token.text == WARP_SZ:
            return Constant(32, "s64")
        if _is_hexadecimal(token, "d", 16):
            return Constant(struct.unpack("<d", int(token.text[2:], 16).to_bytes(8, "little"))[0], "f64")
        if token.kind == "number" and not token.text.startswith(("0x", "0X")) and _is_decimal_fraction(token.text):
            return Constant(float(token.text), "f64")
        value = whole_number(token)
        return Constant(value, "u64" if token.text.endswith("U") or value >> 63 else "s64")


def _is_hexadecimal(token: Token, letter: str, digits: int) -> bool:
    """Whether a token is `0f` or `0d` followed by the bits of a float."""
    return token.kind == "number" and token.text[:2].lower() == f"0{letter}" and len(token.text) == 2 + digits


def _is_decimal_fraction(text: str) -> bool:
    return any(mark in text for mark in ".eE")


def _require(line: int, holds: bool, found: str) -> None:
    if not holds:
        raise CompileError(f"PTX line {line}: a constant expression with {found}")


def _applied(token: Token, operand: Constant) -> Constant:
    value, kind = operand
    if token.text == "+":
        return operand
    if kind == "f64":
        _require(token.line, token.text == "-", f"'{token.text}' of what is no whole number")
        return Constant(-value, kind)
    if token.text == "-":
        return Constant.of(-int(value), kind)
    return Constant(int(not value), "s64") if token.text == "!" else Constant.of(~int(value), "u64")


def _combined(line: int, sign: str, left: Constant, right: Constant) -> Constant:
    if "f64" in (left.kind, right.kind):
        _require(line, left.kind == right.kind, "whole numbers beside others")
        if sign in _COMPARISONS:
            return Constant(int(_COMPARISONS[sign](left.value, right.value)), "s64")
        if sign == "/":
            _require(line, right.value != 0, "a division by zero")
            return Constant(left.value / right.value, "f64")
        _require(line, sign in _ARITHMETIC, f"'{sign}' of what is no whole number")
        return Constant(float(_ARITHMETIC[sign](left.value, right.value)), "f64")
    kind = "u64" if "u64" in (left.kind, right.kind) else "s64"
    a, b = int(Constant.of(int(left.value), kind).value), int(Constant.of(int(right.value), kind).value)
    if sign in _COMPARISONS:
        return Constant(int(_COMPARISONS[sign](a, b)), "s64")
    if sign in ("&&", "||"):
        return Constant(int(bool(a and b) if sign == "&&" else bool(a or b)), "s64")
    if sign in ("<<", ">>"):
        count = right.bits & 63
        return Constant.of(int(left.value) << count if sign == "<<" else int(left.value) >> count, left.kind)
    if sign in ("/", "%"):
        _require(line, b != 0, "a division by zero")
        if sign == "%":
            return Constant.of(left.bits % right.bits, "u64")
        return Constant.of(abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1), kind)
    combine = _BITWISE.get(sign) or _ARITHMETIC[sign]
    return Constant.of(int(combine(a, b)), kind)
