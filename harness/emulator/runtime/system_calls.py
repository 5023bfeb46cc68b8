"""Runtime functions of the calls that kernels make to the CUDA runtime; a separate object file."""

from __future__ import annotations

from collections.abc import Callable

from harness.emulator.abi.context import CALL_MASK, CALL_SITE, CALL_WARP, FAULT_KIND, PRINTER
from harness.emulator.abi.raw_memory import call_host, load64, store64
from harness.emulator.memory.heap import allocate, free_memory


def print_text(ctx: int, warp: int, site: int, mask: int) -> int:
    """Print for each active lane. Addresses of format and arguments are in ADDRESSES and DATA; counts go to DATA_2.

    Returns 1 on a fault, else 0.
    """
    store64(ctx + CALL_WARP, warp)
    store64(ctx + CALL_MASK, mask)
    store64(ctx + CALL_SITE, site)
    call_host(load64(ctx + PRINTER), ctx)
    return 1 if load64(ctx + FAULT_KIND) else 0


EXPORTS: dict[str, Callable[..., int]] = {
    function.__name__: function for function in (print_text, allocate, free_memory)
}
"""Functions by name."""
