"""Emits membar and fence (PTX ISA 9.7.13.4), which only the sanitizer uses: execution is in order anyway.

Warps of a block take turns, and their accesses happen in order; copies and products complete late regardless of fences.
Aliased addresses (`alias`) and tensor maps modified by kernels (`tensormap`) are not supported, so proxy fences for
them do nothing.
"""

from __future__ import annotations

from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.instrumentation.watched import watch_fence, watch_proxy_fence
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import Instruction

_SCOPES = ("cta", "cluster", "gpu", "sys")
_FENCES = (
    *((scope,) for scope in _SCOPES),
    *((order, scope) for order in ("sc", "acq_rel", "acquire", "release") for scope in _SCOPES),
    ("mbarrier_init", "release", "cluster"),
    ("acquire", "sync_restrict::shared::cluster", "cluster"),
    ("release", "sync_restrict::shared::cta", "cluster"),
)
_MEMBARS = (("cta",), ("gl",), ("sys",))
_SHARED_PROXY_FENCES = (
    ("async",),
    ("async", "shared::cta"),
    ("async", "shared::cluster"),
    ("async::generic", "acquire", "sync_restrict::shared::cluster", "cluster"),
    ("async::generic", "release", "sync_restrict::shared::cta", "cluster"),
)
"""Suffixes of `.proxy` that include shared memory."""
_OTHER_PROXY_FENCES = (
    ("alias",),
    ("async", "global"),
    *(("tensormap::generic", order, scope) for order in ("release", "acquire") for scope in _SCOPES),
)


@emits("membar", "fence")
def fence(lanes: WarpEmitter, instruction: Instruction) -> None:
    """membar.level; membar.proxy.alias; fence{.sem}.scope; fence.proxy.*."""
    kind = tuple(instruction.modifiers)
    if kind[:1] != ("proxy",):
        if kind not in (_MEMBARS if instruction.opcode == "membar" else _FENCES) or instruction.operands:
            raise instruction.unsupported("there is no such fence")
        watch_fence(lanes, instruction)
        return
    kind = kind[1:]
    is_shared = kind in _SHARED_PROXY_FENCES
    if not (is_shared or kind in _OTHER_PROXY_FENCES) or (instruction.opcode == "membar" and kind != ("alias",)):
        raise instruction.unsupported("there is no such proxy")
    if len(instruction.operands) != (2 if kind[:2] == ("tensormap::generic", "acquire") else 0):
        raise instruction.unsupported("its operands do not fit its form")
    if is_shared:
        watch_proxy_fence(lanes)
