"""Which source lines of a kernel do which line of the paper's algorithm, from the comments that name those.

`// Line 8: S = tau Q_i K_j^T.` opens a step; what follows belongs to it, until the next one, or the end of the block or
of the function that it stands in. Within an outer step, such as that of a loop, an inner one ends where its block does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

_COMMENT = re.compile(r"^(?P<indent>\s*)(?://|# |#$)\s?(?P<text>.*)$")
_PREPROCESSOR = re.compile(r"^\s*#\w")
_LABEL = re.compile(r"(?:(?<=^)|(?<=[.;] ))(?:Algorithm \d+, )?[Ll]ines? (?P<numbers>\d[^:.]*)[:.]")
_LEADING_NUMBERS = re.compile(r"\d+(?:(?:, | and | to )\d+)*")
_FUNCTION = re.compile(r"^\s*(@|def |__device__|__global__|extern|template|static|inline)")
_DEFINED = re.compile(r"^\s*(?:def |(?:template|static|inline|__device__|__global__|extern|void)\b.*?)(?P<name>\w+)\(")
_CITED = re.compile(r"arXiv \d{4}\.\d{4,5}(?:v\d+)?(?:, algorithms? \d+)?")


@dataclass(frozen=True)
class AlgorithmStep:
    """One line of the algorithm, or several that are done together, and the source lines that do it."""

    label: str
    """As the comment has it: `8`; `12 and 13`; `9; 10, first half`."""
    numbers: tuple[int, ...]
    """The algorithm's lines, in the comment's order; of `3 to 15` the ends."""
    idea: str
    """The comment, in one line."""
    comment_line: int
    """Where it begins in the file."""
    lines: tuple[int, ...]
    """The file's lines that belong to it and to no step within it, the comment's among them."""


def cited_algorithm(text: Sequence[str]) -> str | None:
    """The paper and the algorithm that a file names first, such as `arXiv 2307.08691, algorithm 1`."""
    found = _CITED.search("\n".join(text))
    return None if found is None else found[0]


def algorithm_steps(text: Sequence[str]) -> tuple[AlgorithmStep, ...]:
    """The steps of a file, in the order of their comments. `text`: its lines, the first of which is line 1."""
    steps: list[_Step] = []
    open_steps: list[_Step] = []
    at = 0
    while at < len(text):
        block = _comment_block(text, at)
        if block is not None:
            indent, words = block
            first = next((n for n, line in enumerate(words) if _LABEL.match(line)), None)
            if first is not None:
                while open_steps and open_steps[-1].indent >= indent:
                    open_steps.pop()
                for outer in open_steps:
                    outer.has_inner = True
                step = _Step(indent, at + first + 1, " ".join(words[first:]))
                steps.append(step)
                open_steps.append(step)
            elif open_steps and open_steps[-1].is_over_at_comment(indent):
                open_steps.pop()
            if open_steps:
                open_steps[-1].lines += range(at + 1 + (first or 0), at + len(words) + 1)
            at += len(words)
            continue
        if text[at].strip():
            _take(open_steps, text[at], at + 1)
        at += 1
    return tuple(step.finished() for step in steps)


def enclosing_function(text: Sequence[str], line: int) -> str | None:
    """The name of the function that a line stands in, as far as indentation shows it; None where it shows none."""
    indent = _indent(text[line - 1])
    for at in range(line - 1, 0, -1):
        above = text[at - 1]
        if above.strip() in ("", "{") or _PREPROCESSOR.match(above) or _indent(above) >= indent:
            continue
        indent = _indent(above)
        match = _DEFINED.match(above)
        if match is not None:
            return match["name"]
    return None


def steps_that_call(text: Sequence[str], steps: Sequence[AlgorithmStep], function: str) -> list[AlgorithmStep]:
    """Those of a file's steps whose lines name the function before a parenthesis, or what a template takes."""
    call = re.compile(rf"\b{re.escape(function)}\s*[(<]")
    return [step for step in steps if any(call.search(text[line - 1]) for line in step.lines)]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


@dataclass
class _Step:
    indent: int
    comment_line: int
    idea: str
    lines: list[int] = field(default_factory=list)
    is_function: bool | None = None
    """Whether it names a whole function; None until code follows."""
    is_inside: bool = False
    """Of a function: whether a line deeper than its name has come."""
    has_inner: bool = False
    """Whether a step within it has begun."""
    is_defined: bool = False
    """Of a function in Python: whether `def` has come."""

    def finished(self) -> AlgorithmStep:
        labels = [match["numbers"].strip() for match in _LABEL.finditer(self.idea)]
        leading = [_LEADING_NUMBERS.match(label) for label in labels]
        numbers = [int(n) for match in leading if match is not None for n in re.findall(r"\d+", match[0])]
        return AlgorithmStep("; ".join(labels), tuple(numbers), self.idea, self.comment_line, tuple(self.lines))

    def is_over_at_comment(self, indent: int) -> bool:
        """Whether a comment that names no line begins something else: behind all that the step holds."""
        return indent == self.indent and (self.has_inner or (bool(self.is_function) and self.is_inside))

    def ends_at(self, line: str, indent: int) -> bool:
        """Whether a line of code is beyond the step."""
        if not self.is_function or indent > self.indent:
            return indent < self.indent
        if line.lstrip().startswith("def ") and not self.is_defined:
            return False
        return self.is_inside and not line.lstrip().startswith(("{", ")", "}"))


def _comment_block(text: Sequence[str], at: int) -> tuple[int, list[str]] | None:
    """Indentation and words of the comment that begins there, as far as it is indented alike; None where none does."""
    first = _COMMENT.match(text[at])
    if first is None:
        return None
    words = []
    for line in text[at:]:
        match = _COMMENT.match(line)
        if match is None or match["indent"] != first["indent"]:
            break
        words.append(match["text"].strip())
    return len(first["indent"]), words


def _take(open_steps: list[_Step], line: str, number: int) -> None:
    """Give a line of code to the innermost step that it belongs to, and close those that it is beyond."""
    indent = len(line) - len(line.lstrip())
    if not _PREPROCESSOR.match(line):
        while open_steps and open_steps[-1].ends_at(line, indent):
            open_steps.pop()
    if not open_steps:
        return
    step = open_steps[-1]
    step.lines.append(number)
    for each in open_steps:
        if each.is_function is None and not _PREPROCESSOR.match(line):
            each.is_function = bool(_FUNCTION.match(line)) and indent == each.indent
        if each.is_function and indent > each.indent:
            each.is_inside = True
        if each.is_function and indent == each.indent and line.lstrip().startswith("def "):
            each.is_defined, each.is_inside = True, False
    if step.is_function and step.is_inside and indent <= step.indent and line.lstrip().startswith("}"):
        open_steps.pop()
