"""Checks registers of warpgroup products for accesses since the last `wgmma.fence`.

`codegen/instrumentation/product_registers.py` emits the checks.

A warp's marks are in its state, see `MARKS` in `abi/async_proxy_layout.py`. Generated code sets those of ordinary
instructions; the functions here set those of products.
"""

from __future__ import annotations

from harness.emulator.abi import async_proxy_layout as proxy
from harness.emulator.abi import layout as machine
from harness.emulator.abi import sanitizer_layout as at
from harness.emulator.abi.raw_memory import fill_ones, load32, load64, store32
from harness.emulator.sanitizer.finding_table import report

TIME = at.SLOT["TIME"]
MISSING_WGMMA_FENCE = at.MISSING_WGMMA_FENCE
REGISTERS, NO_MARK, MARKS = machine.REGISTERS, proxy.NO_MARK, proxy.MARKS
SITE_BITS, SITE_MASK = proxy.MARK_SITE_BITS, (1 << proxy.MARK_SITE_BITS) - 1
SHAPE_SIZE, SHAPE_SHARED_A = proxy.SHAPE_SIZE, proxy.SHAPE_SHARED_A
ROW_BITS = 7
"""Log2 of the bytes of a register's 32 lanes."""
FRAGMENT_REGISTERS = 4


def list_bytes(marks: int) -> int:
    """Bytes of one list of marks: 4 for each of the registers located before the marks."""
    return ((marks - REGISTERS) >> ROW_BITS) << 2


def fence_registers(warp: int, marks: int) -> int:
    """`wgmma.fence`: clear the marks. Returns 0."""
    store32(warp + marks, 0)
    fill_ones(warp + marks + MARKS, 2 * list_bytes(marks))
    return 0


def use_registers(
    state: int, index: int, warp: int, site: int, marks: int, places: int, shape: int, product: int
) -> None:
    """Check and mark the registers, at `places`, of a product that begins; `product` is its number plus 1."""
    sums, size, found = shape & 0xFF, (shape >> SHAPE_SIZE) & 0xFF, 0
    fragments = 0 if (shape >> SHAPE_SHARED_A) & 1 else FRAGMENT_REGISTERS
    for register in range(sums + fragments):
        written = warp + marks + MARKS + (((load32(places + 4 * register) - REGISTERS) >> ROW_BITS) << 2)
        read = written + list_bytes(marks)
        before = load32(written)
        if register < sums and (before == NO_MARK or before >> SITE_BITS == size):
            before = load32(read)
        if before != NO_MARK:
            unfenced(state, index, site, before & SITE_MASK)
            found = 1
        store32(written, (size << SITE_BITS) | site if register < sums else NO_MARK)
        if register < sums:
            store32(read, NO_MARK)
        else:
            store32(read + list_bytes(marks), product)
    if load32(warp + marks) == NO_MARK and not found:
        unfenced(state, index, site, site)


def unfenced(state: int, index: int, site: int, before: int) -> None:
    """Report that a product uses a register that `before` accessed without a fence.

    `before` is `site` if no fence preceded the first product.
    """
    report(state, MISSING_WGMMA_FENCE, site, 32 * index, 0, 0, before, load64(state + TIME), 32 * index)
