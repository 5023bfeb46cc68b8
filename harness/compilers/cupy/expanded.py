"""Reduces a CUDA source to what one kernel compiles: features that are off are left out.

A source is a sequence of declarations. Those that the kernel does not use, directly or through others, are dropped, and
`if constexpr` with a condition that is known is replaced by the branch that is taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_SKIPPED = re.compile(
    r"""//[^\n]* | /\*.*?\*/ | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' | ^[ \t]*\#[^\n]*""", re.X | re.S | re.M
)
"""Comments, literals and directives, in which braces and semicolons mean nothing."""
_NAME = re.compile(r"[A-Za-z_]\w*")
_ATTRIBUTE = re.compile(r"__(?:launch_bounds|align|attribute|cluster_dims)__\s*\((?:[^()]|\([^()]*\))*\)")
_TYPE = re.compile(r"\b(?:struct|class|union|enum(?:\s+class)?)\s+(?:\w+\s+)*?(\w+)\s*(<[^;{]*>)?\s*(?::[^;{]*)?$")
_OPTION = re.compile(r"-D\s*(\w+)(?:=(-?\d+))?$")
_LINE = re.compile(r'^[ \t]*#line \d+ "([^"]*)"[ \t]*\n', re.M)
_CONDITION = re.compile(r"\bif constexpr \(")


def expand(source: str, kernel: str, options: tuple[str, ...]) -> str:
    """Return the declarations of `source` that `kernel` compiles with these `-D` options, with their comments.

    The options that the result uses are listed first. A source without a kernel of that name, such as one whose kernel
    is a template, is returned as it is.
    """
    macros = {match[1]: int(match[2] or 1) for match in map(_OPTION.match, options) if match}
    kept = _reachable(list(_declarations(source)), kernel)
    if not kept:
        return source
    text = _joined(kept)
    while (folded := _fold(text, macros | _constants(kept, macros))) != text:
        kept = _reachable(list(_declarations(folded)), kernel)
        text = _joined(kept)
    used = set(_NAME.findall(text))
    sizes = "".join(f"constexpr int {name} = {value};\n" for name, value in macros.items() if name in used)
    text = _LINE.sub(lambda match: f"\n// --- {match[1]}\n\n", text)
    return (sizes and f"{sizes}\n") + re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _joined(declarations: list[_Declaration]) -> str:
    """Join declarations; of `#line` directives those stay that are followed by another declaration."""
    following = [*map(_is_line, declarations[1:]), True]
    return "".join(each.text for each, ends in zip(declarations, following) if not (ends and _is_line(each)))


@dataclass(frozen=True)
class _Declaration:
    """A function, a type, a constant, a `using` line or a directive, with the comments before it."""

    text: str
    names: tuple[str, ...]
    """Names that it declares."""
    specializes: bool
    """Whether it is a specialization of a template."""

    @property
    def uses(self) -> set[str]:
        """Names in it."""
        return set(_NAME.findall(_bare(self.text)))


def _is_line(declaration: _Declaration) -> bool:
    return _LINE.fullmatch(declaration.text.lstrip()) is not None


def _bare(text: str) -> str:
    """Return the text with comments, literals and directives blanked out; positions stay."""
    return _SKIPPED.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _declarations(source: str) -> Iterator[_Declaration]:
    bare, start, depth = _bare(source), 0, 0
    for position, character in enumerate(bare):
        if character in "{(":
            depth += 1
        elif character in "})":
            depth -= 1
        ends = depth == 0 and (character == ";" or (character == "}" and not _goes_on(bare, position)))
        if ends:
            end = source.find("\n", position) + 1 or len(source)
            yield from _one(source[start:end])
            start = end
        elif depth == 0 and character == "\n" and _is_directive(source, position):
            yield from _one(source[start : position + 1])
            start = position + 1
    if source[start:].strip():
        yield from _one(source[start:])


def _goes_on(bare: str, position: int) -> bool:
    """Whether a declaration goes on after its closing brace: a type, an initializer."""
    return bare[position + 1 :].lstrip()[:1] in (";", ",", "=") if position + 1 < len(bare) else False


def _is_directive(source: str, newline: int) -> bool:
    return source[source.rfind("\n", 0, newline) + 1 : newline].lstrip().startswith("#")


def _one(text: str) -> Iterator[_Declaration]:
    bare = _ATTRIBUTE.sub("", _bare(text))
    head = re.split(r"[{;=]", bare, maxsplit=1)[0]
    type_ = _TYPE.search(head)
    alias = re.match(r"\s*(?:template\s*<[^;]*?>\s*)?using\s+(\w+)\s*=", bare)
    if text.lstrip().startswith("#") and not bare.strip():
        yield _Declaration(text, (), False)
    elif alias:
        yield _Declaration(text, (alias[1],), False)
    elif type_:
        yield _Declaration(text, (type_[1],), type_[2] is not None)
    elif re.match(r"\s*typedef\b", bare):
        yield _Declaration(text, (_NAME.findall(re.sub(r"\[[^\]]*\]", "", bare))[-1],), False)
    elif "(" in head and ("{" in bare or not re.search(r"\bconstexpr\b[^(]*$", head.split("(")[0])):
        name = re.findall(r"(operator\s*\S+|\w+)\s*$", head.split("(")[0])
        yield _Declaration(text, tuple(name[-1:]), False)
    else:
        yield _Declaration(text, tuple(re.findall(r"(\w+)\s*(?:\[[^\]]*\]\s*)*(?=[=,;])", bare)), False)


def _reachable(declarations: list[_Declaration], kernel: str) -> list[_Declaration]:
    """Return the declarations that the kernel needs, in their order; none if there is no such kernel."""
    entry = [each for each in declarations if kernel in each.names and "__global__" in each.text]
    if not entry:
        return []
    kept = {id(each) for each in entry}
    used = set[str]().union(*(each.uses for each in entry))
    grew = True
    while grew:
        grew = False
        texts = "\n".join(_bare(each.text) for each in declarations if id(each) in kept)
        for each in declarations:
            if id(each) in kept or not used & set(each.names):
                continue
            if each.specializes and not _instantiated(each.names[0], texts):
                continue
            kept.add(id(each))
            used |= each.uses
            grew = True
    return [
        each for each in declarations if id(each) in kept or each.text.lstrip().startswith("#include") or _is_line(each)
    ]


def _instantiated(template: str, text: str) -> bool:
    """Whether the text names the template with arguments, for which alone its specializations are."""
    return re.search(rf"\b{template}\s*<\s*[^\s>]", text) is not None


def _constants(declarations: list[_Declaration], macros: Mapping[str, int]) -> dict[str, int]:
    """Return constants whose values are known, and `Alias::NAME` of types that `using` lines choose."""
    known: dict[str, int] = {}
    members: dict[str, dict[str, str]] = {}
    for each in declarations:
        bare = _bare(each.text)
        for name, value in re.findall(r"^(?:static )?constexpr (?:int|bool|unsigned) (\w+) = ([^;{]+);", bare, re.M):
            result = _value(value, {**macros, **known})
            if result is not None:
                known[name] = result
        if re.search(r"\bstruct\b", bare) and each.names:
            found = re.findall(r"static constexpr (?:int|bool|unsigned) (\w+) = ([^;{]+);", bare)
            members[each.names[0]] = dict(found)
    for each in declarations:
        alias = re.match(r"\s*using\s+(\w+)\s*=\s*(\w+)", _bare(each.text))
        for name, value in members.get(alias[2], {}).items() if alias else ():
            result = _value(value, {**macros, **known})
            if result is not None:
                known[f"{alias[1]}::{name}"] = result  # type: ignore[index]
    return known


def _value(expression: str, known: Mapping[str, int]) -> int | None:
    """Evaluate an integer expression of C; None if a name in it is not known, or it is of another kind."""
    words = {"true": 1, "false": 0} | dict(known)
    names = re.findall(r"[A-Za-z_]\w*(?:::\w+)*", expression)
    if any(name not in words for name in names) or re.search(r"[\"'.]", expression):
        return None
    text = re.sub(r"[A-Za-z_]\w*(?:::\w+)*", lambda match: f"({words[match[0]]})", expression)
    text = text.replace("&&", " and ").replace("||", " or ").replace("/", "//")
    text = re.sub(r"!(?!=)", " not ", text)
    choice = re.fullmatch(r"([^?]+)\?([^:?]+):([^:?]+)", text)
    if choice:
        text = f"({choice[2]}) if ({choice[1]}) else ({choice[3]})"
    if not re.fullmatch(r"[\d\s()+\-*/%<>=!&|^andorotifels]*", text):
        return None
    try:
        return int(eval(text, {"__builtins__": {}}))  # digits and operators alone
    except Exception:
        return None


def _fold(text: str, known: Mapping[str, int]) -> str:
    """Replace the first `if constexpr` whose condition is known by the branch that is taken."""
    bare = _bare(text)
    for match in _CONDITION.finditer(bare):
        close = _closing(bare, match.end() - 1)
        value = _value(bare[match.end() : close], known)
        if value is None:
            continue
        then, end = _statement(bare, close + 1)
        other, after = ("", end)
        rest = re.match(r"\s*else\b", bare[end:])
        if rest:
            start, after = _statement(bare, end + rest.end())[0], _statement(bare, end + rest.end())[1]
            other = text[start:after]
        taken = text[then:end] if value else other
        line = text.rfind("\n", 0, match.start()) + 1
        indent = re.match(r"[ \t]*", text[line:])[0]  # type: ignore[index]
        return text[: match.start()] + _unwrapped(taken, indent) + text[after:]
    return text


def _closing(bare: str, opening: int) -> int:
    depth = 0
    for position in range(opening, len(bare)):
        depth += (bare[position] in "({") - (bare[position] in ")}")
        if depth == 0:
            return position
    return len(bare) - 1


def _statement(bare: str, start: int) -> tuple[int, int]:
    """Return where the next statement begins and ends: a block, an `if` with its `else`, or up to a semicolon."""
    begin = start + len(bare[start:]) - len(bare[start:].lstrip())
    if bare[begin] == "{":
        return begin, _closing(bare, begin) + 1
    condition = re.match(r"if(?: constexpr)?\s*\(", bare[begin:])
    if condition:
        _, end = _statement(bare, _closing(bare, begin + condition.end() - 1) + 1)
        rest = re.match(r"\s*else\b", bare[end:])
        return begin, _statement(bare, end + rest.end())[1] if rest else end
    position = begin
    while position < len(bare) and bare[position] != ";":
        position = _closing(bare, position) + 1 if bare[position] in "({" else position + 1
    return begin, position + 1


def _unwrapped(statement: str, indent: str) -> str:
    """Return a block without its braces, one level less indented; other statements as they are."""
    if not statement.startswith("{"):
        return statement
    inner = statement[1:-1].strip("\n").rstrip()
    lines = [line[4:] if line.startswith(indent + "    ") else line for line in inner.splitlines()]
    return "\n".join(lines).lstrip()
