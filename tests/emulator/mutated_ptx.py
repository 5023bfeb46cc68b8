"""PTX with mistakes in it, as a person's slip or a damaged file has them: real text, changed at random places."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

_TOKEN = re.compile(
    r"\.[A-Za-z0-9_]+(?:::[A-Za-z0-9_]+)*|[%$A-Za-z_][A-Za-z0-9_$]*|[0-9][0-9A-Za-z.]*|\s+|.", re.DOTALL
)
_NUMBER = re.compile(r"\b(?:0[xX][0-9a-fA-F]+|[0-9]+)\b")
_SUFFIX = re.compile(r"(?<=[a-z0-9])\.[a-z][a-z0-9]*(?:::[a-z0-9]+)*")
_SUFFIXES = [
    ".b8", ".b16", ".b32", ".b64", ".b128", ".u8", ".u16", ".u32", ".u64", ".s8", ".s16", ".s32", ".s64",
    ".f16", ".f16x2", ".bf16", ".f32", ".f64", ".pred", ".tf32", ".rn", ".rz", ".rni", ".ftz", ".sat",
    ".approx", ".full", ".lo", ".hi", ".wide", ".cc", ".v2", ".v4", ".v8", ".x1", ".x2", ".x4", ".global",
    ".shared", ".local", ".param", ".const", ".volatile", ".sync", ".aligned", ".bfly", ".idx", ".up",
    ".ballot", ".all", ".and", ".or", ".add", ".exch", ".cas", ".eq", ".lt", ".equ", ".to", ".uni", ".m8n8",
    ".m16n8k8", ".m16n8k16", ".row", ".col", ".trans", ".ca", ".cg",
]  # fmt: skip
_NUMBERS = [
    "0", "1", "2", "3", "7", "8", "16", "31", "32", "33", "64", "255", "4095", "65536", "1000000000",
    "4294967295", "4294967296", "9223372036854775808", "99999999999999999999999999", "0x7fffffff",
    "0xffffffffffffffff", "-1", "0f7F800000", "0dFFF0000000000000", "1.5", "08", "9" * 5000,
]  # fmt: skip


def mutated(text: str, rng: random.Random) -> str:
    """`text` with one to four changes, each of a kind that is drawn."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        text = rng.choice(_CHANGES)(text, rng)
    return text


def _changed_tokens(change: Callable[[list[str], int, random.Random], None]) -> Callable[[str, random.Random], str]:
    def changed(text: str, rng: random.Random) -> str:
        tokens = _TOKEN.findall(text)
        if len(tokens) < 2:
            return text
        change(tokens, rng.randrange(len(tokens)), rng)
        return "".join(tokens)

    return changed


def _delete(tokens: list[str], at: int, rng: random.Random) -> None:
    del tokens[at : at + rng.choice((1, 1, 2, 5))]


def _duplicate(tokens: list[str], at: int, rng: random.Random) -> None:
    tokens[at:at] = tokens[at : at + rng.choice((1, 1, 3))]


def _swap(tokens: list[str], at: int, rng: random.Random) -> None:
    other = rng.randrange(len(tokens))
    tokens[at], tokens[other] = tokens[other], tokens[at]


def _one_match(pattern: re.Pattern[str], instead: list[str]) -> Callable[[str, random.Random], str]:
    def changed(text: str, rng: random.Random) -> str:
        matches = list(pattern.finditer(text))
        if not matches:
            return text
        match = rng.choice(matches)
        return text[: match.start()] + rng.choice(instead) + text[match.end() :]

    return changed


def _truncate(text: str, rng: random.Random) -> str:
    return text[: rng.randrange(len(text) + 1)]


def _shuffle_lines(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    start = rng.randrange(len(lines))
    some = lines[start : start + 6]
    rng.shuffle(some)
    lines[start : start + 6] = some
    return "\n".join(lines)


def _move_suffix(text: str, rng: random.Random) -> str:
    matches = list(_SUFFIX.finditer(text))
    if not matches:
        return text
    first, second = rng.choice(matches), rng.choice(matches)
    return text[: first.start()] + second.group() + text[first.end() :]


def _other_character(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice('{}()[];:,.@!|+-<>=*%_"\\/\0\u00e9\u0663') + text[at + rng.randrange(2) :]


_CHANGES = (
    _changed_tokens(_delete),
    _changed_tokens(_duplicate),
    _changed_tokens(_swap),
    _one_match(_NUMBER, _NUMBERS),
    _one_match(_NUMBER, _NUMBERS),
    _one_match(_SUFFIX, _SUFFIXES),
    _one_match(_SUFFIX, _SUFFIXES),
    _move_suffix,
    _truncate,
    _shuffle_lines,
    _other_character,
)
