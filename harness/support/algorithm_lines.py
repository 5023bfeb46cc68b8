"""Maps source lines of a kernel to the lines of the paper's algorithm that its comments name.

A comment such as `// Line 8: S = tau Q_i K_j^T.` opens a step. The following lines belong to it, until the next step or
the end of the enclosing block or function. Within an outer step, such as that of a loop, an inner step ends where its
block does.
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
    """One line of the algorithm, or several that are implemented together, and the source lines that implement it."""

    label: str
    """The label in the comment: `8`; `12 and 13`; `9; 10, first half`."""
    numbers: tuple[int, ...]
    """Line numbers of the algorithm, in the comment's order; of a range such as `3 to 15` its ends."""
    idea: str
    """The comment's text, in one line."""
    comment_line: int
    """The file's line at which the comment begins."""
    lines: tuple[int, ...]
    """Lines of the file that belong to this step and to no step within it, including the comment."""


def cited_algorithm(text: Sequence[str]) -> str | None:
    """The first paper and algorithm that a file cites, such as `arXiv 2307.08691, algorithm 1`.

    None if it cites none.
    """
    found = _CITED.search("\n".join(text))
    return None if found is None else found[0]


def algorithm_steps(text: Sequence[str]) -> tuple[AlgorithmStep, ...]:
    """The steps of a file, in the order of their comments. `text[0]` is line 1."""
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
    """Name of the function that contains a line, judged by indentation; None if there is none."""
    indent = indent_of(text[line - 1])
    for at in range(line - 1, 0, -1):
        above = text[at - 1]
        if above.strip() in ("", "{") or _PREPROCESSOR.match(above) or indent_of(above) >= indent:
            continue
        indent = indent_of(above)
        match = _DEFINED.match(above)
        if match is not None:
            return match["name"]
    return None


def steps_that_call(text: Sequence[str], steps: Sequence[AlgorithmStep], function: str) -> list[AlgorithmStep]:
    """The steps whose lines name the function followed by a parenthesis or by template arguments."""
    call = re.compile(rf"\b{re.escape(function)}\s*[(<]")
    return [step for step in steps if any(call.search(text[line - 1]) for line in step.lines)]


def indent_of(line: str) -> int:
    """Number of leading white-space characters."""
    return len(line) - len(line.lstrip())


@dataclass
class _Step:
    indent: int
    comment_line: int
    idea: str
    lines: list[int] = field(default_factory=list)
    is_function: bool | None = None
    """Whether the comment names a whole function; None until code follows."""
    is_inside: bool = False
    """For a function: whether a line indented deeper than its name was reached."""
    has_inner: bool = False
    """Whether an inner step has begun."""
    is_defined: bool = False
    """For a function in Python: whether `def` was reached."""

    def finished(self) -> AlgorithmStep:
        labels = [match["numbers"].strip() for match in _LABEL.finditer(self.idea)]
        leading = [_LEADING_NUMBERS.match(label) for label in labels]
        numbers = [int(n) for match in leading if match is not None for n in re.findall(r"\d+", match[0])]
        return AlgorithmStep("; ".join(labels), tuple(numbers), self.idea, self.comment_line, tuple(self.lines))

    def is_over_at_comment(self, indent: int) -> bool:
        """Whether a comment that names no line ends the step: it stands behind everything in the step."""
        return indent == self.indent and (self.has_inner or (bool(self.is_function) and self.is_inside))

    def ends_at(self, line: str, indent: int) -> bool:
        """Whether a line of code is beyond the step."""
        if not self.is_function or indent > self.indent:
            return indent < self.indent
        if line.lstrip().startswith("def ") and not self.is_defined:
            return False
        return self.is_inside and not line.lstrip().startswith(("{", ")", "}"))


def _comment_block(text: Sequence[str], at: int) -> tuple[int, list[str]] | None:
    """Indentation and words of the comment block that begins at `at`; None if there is none."""
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
    """Add a line of code to the innermost step that contains it, and close the steps that it lies beyond."""
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
