"""A copy of a kernel's PTX whose warps note the time: when they begin, at barriers of the block, and when they return.

Before: PTX of a kernel `k(...)`. After: the same with one parameter more, the address of room for stamps, and with code
in front of the entry's first instruction, around each `bar.sync` and `barrier.sync` of the entry, and in front of each
`ret` and `exit`. The first lane of each warp writes stamps; what the kernel computes stays as it is. Barriers in
functions that the compiler did not inline are left out.

A stamp has 16 bytes: `%globaltimer` (nanoseconds), `%smid`, and what happened (`BEGINS`, ...). A warp has room for a
number of them, one behind the other; the last place is for its end, and what finds no room is not written.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

from harness.support.errors import CompileError

STAMP_BYTES = 16
BEGINS, ARRIVES, LEAVES, ENDS = range(1, 5)
"""What happened; `ARRIVES` and `LEAVES` are at a barrier. 0 is a place that nobody has written to."""
FEWEST_STAMPS = 4
"""That there is room for."""
_PARAMETER = "attention_sandbox_stamps"
_BARRIER = re.compile(r"(@!?%\w+\s+)?(bar|barrier)\.(cta\.)?(sync|red)\b")
_RETURN = re.compile(r"(?:@(!?)(%\w+)\s+)?(ret|exit)\s*;")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_COMMENT_OR_BRACE = re.compile(rf"{_COMMENT.pattern}|[{{}}]", re.DOTALL)
_ALONE = re.compile(
    r"[{}]|[\w$]+\s*:(?!:)|\.loc\s+\d+\s+\d+\s+\d+(?:\s*,\s*function_name[^,\n]*,\s*inlined_at\s+\d+\s+\d+\s+\d+)?"
)
"""What stands in front of a statement: a brace that opens or closes a scope, a label, a line of the source."""
_REGISTERS = """.reg .pred %stamp_first, %stamp_room;
.reg .b32 %stamp_a, %stamp_b, %stamp_c, %stamp_warp, %stamp_left, %stamp_sm;
.reg .b64 %stamp_next, %stamp_end, %stamp_more, %stamp_time;
"""
_NUMBER_OF_WARP = """mov.u32 %stamp_a, %tid.z;
mov.u32 %stamp_b, %ntid.y;
mov.u32 %stamp_c, %tid.y;
mad.lo.u32 %stamp_a, %stamp_a, %stamp_b, %stamp_c;
mov.u32 %stamp_b, %ntid.x;
mov.u32 %stamp_c, %tid.x;
mad.lo.u32 %stamp_a, %stamp_a, %stamp_b, %stamp_c;
and.b32 %stamp_c, %stamp_a, 31;
setp.eq.u32 %stamp_first, %stamp_c, 0;
shr.u32 %stamp_warp, %stamp_a, 5;
mov.u32 %stamp_c, %ntid.y;
mul.lo.u32 %stamp_b, %stamp_b, %stamp_c;
mov.u32 %stamp_c, %ntid.z;
mul.lo.u32 %stamp_b, %stamp_b, %stamp_c;
add.u32 %stamp_b, %stamp_b, 31;
shr.u32 %stamp_sm, %stamp_b, 5;
mov.u32 %stamp_a, %ctaid.z;
mov.u32 %stamp_b, %nctaid.y;
mov.u32 %stamp_c, %ctaid.y;
mad.lo.u32 %stamp_a, %stamp_a, %stamp_b, %stamp_c;
mov.u32 %stamp_b, %nctaid.x;
mov.u32 %stamp_c, %ctaid.x;
mad.lo.u32 %stamp_a, %stamp_a, %stamp_b, %stamp_c;
mad.lo.u32 %stamp_warp, %stamp_a, %stamp_sm, %stamp_warp;
"""
"""Lanes in front decide who writes; `%stamp_warp` is the block's number times its warps, plus the warp's own."""


def stamped(ptx: str, entries: Collection[str], stamps: int) -> str:
    """The module with these kernels stamped, with room for so many stamps per warp. Raises `CompileError`."""
    for entry in entries:
        ptx = _stamped_entry(ptx, entry, stamps)
    return ptx


def room_bytes(blocks: int, warps: int, stamps: int) -> int:
    """What one launch needs, all zeros at its beginning."""
    return STAMP_BYTES * blocks * warps * stamps


def _stamped_entry(ptx: str, entry: str, stamps: int) -> str:
    head = re.search(rf"\.entry\s+{re.escape(entry)}\s*\(([^)]*)\)", ptx)
    start = -1 if head is None else ptx.find("{", head.end())
    if head is None or start < 0:
        raise CompileError(f"there is no kernel {entry} in its PTX, so it cannot be stamped")
    end = _end_of_body(ptx, start)
    parameter = f".param .u64 {entry}_{_PARAMETER}"
    parameters = f"{head[1].rstrip()},\n{parameter}\n" if head[1].strip() else parameter
    body = "\n".join(("", *_with_stamps(_statements(ptx[start + 1 : end]), entry, stamps), ""))
    return f"{ptx[: head.start(1)]}{parameters}{ptx[head.end(1) : start + 1]}{body}{ptx[end:]}"


def _end_of_body(ptx: str, start: int) -> int:
    """Where the brace closes that opens at `start`, comments aside. Strings stand in directives outside of bodies."""
    depth = 0
    for found in _COMMENT_OR_BRACE.finditer(ptx, start):
        depth += (found[0] == "{") - (found[0] == "}")
        if depth == 0:
            return found.start()
    raise CompileError("the PTX ends within a kernel, so it cannot be stamped")


def _statements(body: str) -> Iterator[str]:
    """The body without comments; what may stand on a line with others has one of its own."""
    for line in _COMMENT.sub(" ", body).replace(";", ";\n").split("\n"):
        rest = line.strip()
        while rest:
            alone = _ALONE.match(rest)
            if alone is None:
                yield rest
                break
            yield alone[0].strip()
            rest = rest[alone.end() :].strip()


def _with_stamps(statements: Iterable[str], entry: str, stamps: int) -> Iterator[str]:
    begun = False
    for number, text in enumerate(statements):
        if not begun and not text.startswith("."):
            begun = True
            yield from (_REGISTERS, _NUMBER_OF_WARP, _room(entry, stamps), _stamp(BEGINS))
        returns = _RETURN.fullmatch(text)
        if returns is not None:
            yield from _at_return(returns, number)
        elif _BARRIER.match(text):
            yield from (_stamp(ARRIVES), text, _stamp(LEAVES))
        else:
            yield text


def _room(entry: str, stamps: int) -> str:
    size = STAMP_BYTES * stamps
    return (
        f"ld.param.u64 %stamp_next, [{entry}_{_PARAMETER}];\ncvta.to.global.u64 %stamp_next, %stamp_next;\n"
        f"mul.wide.u32 %stamp_more, %stamp_warp, {size};\nadd.u64 %stamp_next, %stamp_next, %stamp_more;\n"
        f"add.u64 %stamp_end, %stamp_next, {size - STAMP_BYTES};\n"
    )


def _write(to: str, kind: int, who: str) -> str:
    return (
        "mov.u64 %stamp_time, %globaltimer;\nmov.u32 %stamp_sm, %smid;\n"
        f"mov.u32 %stamp_left, {kind};\n@{who} st.global.u64 [{to}], %stamp_time;\n"
        f"@{who} st.global.v2.u32 [{to}+8], {{%stamp_sm, %stamp_left}};\n"
    )


def _stamp(kind: int) -> str:
    return (
        "setp.lt.u64 %stamp_room, %stamp_next, %stamp_end;\nand.pred %stamp_room, %stamp_room, %stamp_first;\n"
        f"{_write('%stamp_next', kind, '%stamp_room')}"
        f"@%stamp_room add.u64 %stamp_next, %stamp_next, {STAMP_BYTES};\n"
    )


def _at_return(returns: re.Match[str], number: int) -> Iterator[str]:
    """Who returns stamps first: under a predicate a jump over both stands for it."""
    negated, predicate, opcode = returns.groups()
    if predicate is None:
        yield f"{_write('%stamp_end', ENDS, '%stamp_first')}{opcode};"
        return
    label = f"$stamp_stays_{number}"
    yield f"@{'' if negated else '!'}{predicate} bra {label};"
    yield f"{_write('%stamp_end', ENDS, '%stamp_first')}{opcode};\n{label}:"
