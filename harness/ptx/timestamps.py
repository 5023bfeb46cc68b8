"""Inserts code into a kernel's PTX that records timestamps of each warp: at its start, at block barriers, at its end.

Before: the PTX of a kernel `k(...)`. After: the kernel has one more parameter, the address of a buffer for timestamps,
and more code before its first instruction, around each `bar.sync` and `barrier.sync`, and before each `ret` and `exit`.
The first lane of each warp writes the timestamps; the kernel's results do not change. Barriers in functions that the
compiler did not inline are omitted.

A timestamp has 16 bytes: `%globaltimer` (nanoseconds), `%smid`, and the kind of event (`BEGINS`, ...). A warp has a
fixed number of consecutive slots. The last one is for its end; events that find no free slot are not recorded.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

from harness.ptx.statements import Statement, entry_text, statements, without_comments
from harness.support.errors import CompileError

STAMP_BYTES = 16
BEGINS, ARRIVES, LEAVES, ENDS = range(1, 5)
"""Kinds of events. `ARRIVES` and `LEAVES` occur at a barrier. 0 marks a slot that has not been written."""
FEWEST_STAMPS = 4
"""Minimum slots per warp."""
_PARAMETER = "attention_sandbox_stamps"
_BARRIER = re.compile(r"(?:@!?%\w+\s+)?(?:bar|barrier)\.(?:cta\.)?(?:sync|red)\b")
_RETURN = re.compile(r"(?:@(!?)(%\w+)\s+)?(ret|exit)\s*;")
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
"""Sets `%stamp_first` in the lane that writes. `%stamp_warp` is the block's number times its warps, plus the warp's
number."""


def stamped(ptx: str, entries: Collection[str], stamps: int) -> str:
    """Return the module with timestamps in these entries, `stamps` slots per warp.

    Raises `CompileError` if an entry is missing or the text ends within it.
    """
    for entry in entries:
        ptx = _stamped_entry(ptx, entry, stamps)
    return ptx


def room_bytes(blocks: int, warps: int, stamps: int) -> int:
    """Return the size in bytes of the buffer for one launch, which must be zero at its start."""
    return STAMP_BYTES * blocks * warps * stamps


def _stamped_entry(ptx: str, entry: str, stamps: int) -> str:
    head = entry_text(ptx, entry)
    if head is None or head.body is None:
        raise CompileError(f"there is no kernel {entry} in its PTX, so it cannot be stamped")
    body = list(statements(ptx, head))
    if sum((each.kind == "open") - (each.kind == "close") for each in body) != -1:
        raise CompileError("the PTX ends within a kernel, so it cannot be stamped")
    parameter = f".param .u64 {entry}_{_PARAMETER}"
    first, last = head.parameters or (head.end, head.end)
    given = without_comments(ptx[first:last]).rstrip()
    parameters = f"{given},\n{parameter}\n" if given.strip() else parameter
    if head.parameters is None:
        parameters = f"({parameters})"
    stamped_body = "\n".join(("", *_with_stamps(body[:-1], entry, stamps), ""))
    return f"{ptx[:first]}{parameters}{ptx[last : head.body[0]]}{stamped_body}{ptx[body[-1].start :]}"


def _with_stamps(body: Iterable[Statement], entry: str, stamps: int) -> Iterator[str]:
    begun = False
    for number, (kind, _, text) in enumerate(body):
        if not begun and kind not in ("directive", "location"):
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
    """Yield a timestamp and the return, or for a return with a predicate, a branch around both."""
    negated, predicate, opcode = returns.groups()
    if predicate is None:
        yield f"{_write('%stamp_end', ENDS, '%stamp_first')}{opcode};"
        return
    label = f"$stamp_stays_{number}"
    yield f"@{'' if negated else '!'}{predicate} bra {label};"
    yield f"{_write('%stamp_end', ENDS, '%stamp_first')}{opcode};\n{label}:"
