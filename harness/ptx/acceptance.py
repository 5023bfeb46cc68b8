"""Refuses PTX that no driver loads.

Its version is not known, it has an instruction that the ISA does not have, or a variable too large for shared memory.

An instruction of the ISA that the emulator lacks is no reason: its kernel fails when it is launched, and the module's
other kernels run.
"""

from __future__ import annotations

import functools
import math
import re

from harness.ptx.opcodes import OPCODES
from harness.ptx.statements import functions, position_of_directive, statements
from harness.support.errors import CompileError, UnsupportedPtxVersion
from harness.support.suggestion import did_you_mean

NEWEST_VERSION = 9, 5
"""PTX ISA of CUDA 13.5."""
_NOT_EMULATED = {
    "alloca", "cctl", "fabric", "fns", "istypep", "multimem", "stackrestore", "stacksave", "suq", "sured", "txq",
}  # fmt: skip
"""Opcodes of the ISA without a row in `OPCODES`, and `cctl`, which `ptxas` takes without documentation."""
ISA_OPCODES = _NOT_EMULATED | {name.partition(".")[0] for name in OPCODES}
"""All opcodes up to their first dot."""
_VERSION = re.compile(r"\s+(\d{1,4})\.(\d{1,4})", re.ASCII)
MAX_STATIC_SHARED_BYTES = 48 * 1024
"""Shared memory of a kernel's variables. More is dynamic, without a size in the PTX."""
_SHARED_ARRAY = re.compile(
    r"^[ \t]*(?:\.\w+[ \t]+)?\.shared\s+(?:\.align\s+\d+\s+)?\.[bsuf](\d+)\s+([\w$%]+)((?:\[\d+\])+)", re.MULTILINE
)
_OPCODE = re.compile(r"(?:@!?\s*[\w$%]+\s+)?([A-Za-z_]\w*)", re.ASCII)


@functools.lru_cache(maxsize=16)
def require_loadable(ptx: str) -> None:
    """Raise `UnsupportedPtxVersion` or `CompileError` if drivers do not load this module. Reads no operands."""
    at = position_of_directive(ptx, "version")
    if at is not None and (found := _VERSION.match(ptx, at)):
        version = int(found[1]), int(found[2])
        if version > NEWEST_VERSION:
            newest = ".".join(map(str, NEWEST_VERSION))
            raise UnsupportedPtxVersion(
                f"PTX line {_line(ptx, at)}: '.version {found[1]}.{found[2]}' is not supported; the newest version is "
                f"{newest}, so compile with a toolkit that produces at most that"
            )
    for function in functions(ptx):
        for statement in statements(ptx, function):
            if statement.kind != "instruction":
                continue
            opcode = _OPCODE.match(statement.text)
            if opcode is not None and opcode[1] not in ISA_OPCODES:
                line = _line(ptx, statement.start + opcode.start(1))
                raise CompileError(
                    f"PTX line {line}: {opcode[1]!r} is not an instruction of PTX"
                    f"{did_you_mean(opcode[1], sorted(ISA_OPCODES), cutoff=0.6)}"
                )


def require_shared_arrays_fit(ptx: str) -> None:
    """Raise `CompileError` if a static shared array is larger than a block's static shared memory."""
    for array in _SHARED_ARRAY.finditer(ptx):
        size_bytes = int(array[1]) // 8 * math.prod(map(int, re.findall(r"\d+", array[3])))
        if size_bytes > MAX_STATIC_SHARED_BYTES:
            raise CompileError(
                f"PTX line {_line(ptx, array.start(2))}: {array[2]} has {size_bytes} bytes of static shared memory; a "
                f"block has at most {MAX_STATIC_SHARED_BYTES}, beyond that it has to be dynamic ('extern __shared__')"
            )


def _line(ptx: str, position: int) -> int:
    return 1 + ptx.count("\n", 0, position)
