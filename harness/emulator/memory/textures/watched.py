"""Reports the texels that a request reads to the sanitizer; a separate object file."""

from __future__ import annotations

from collections.abc import Callable

from harness.emulator.abi import layout as at
from harness.emulator.abi import sanitizer_layout as sanitizer
from harness.emulator.abi import texture_layout as tex
from harness.emulator.abi.raw_memory import load64, store64
from harness.emulator.memory.textures.sampling import NOT_READ, texel_bytes
from harness.emulator.memory.translation import host_address
from harness.emulator.sanitizer.watch import watch_memory

SPACE_GLOBAL, LOAD = at.SPACES["global"], sanitizer.LOAD


def watch_texels(ctx: int, warp: int, site: int, mask: int, scratch: int) -> int:
    """Check the reads of the last `sample`. Returns 0."""
    place = warp + scratch
    for corner in range(tex.CORNERS):
        left = mask
        while left:
            size, some = 0, 0
            for lane in range(32):
                if not (left >> lane) & 1:
                    continue
                here = texel_bytes(load64(place + tex.OBJECTS + 8 * lane))
                if size == 0:
                    size = here
                if here != size:
                    continue
                left &= ~(1 << lane)
                address = load64(place + tex.TEXELS + 8 * (32 * corner + lane))
                if address != NOT_READ and address != 0:
                    store64(warp + at.ADDRESSES + 8 * lane, address)
                    store64(warp + at.HOSTS + 8 * lane, host_address(ctx, lane, address, size))
                    some |= 1 << lane
            watch_memory(ctx, warp, site, SPACE_GLOBAL, some, size, 1, LOAD)
    return 0


EXPORTS: dict[str, Callable[..., int]] = {"watch_texels": watch_texels}
"""Functions by name."""
