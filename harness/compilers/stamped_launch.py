"""Native launches of stamped copies of kernels (`stamped_ptx`), which the driver compiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.compilers.native_gpu import NativeGpu
from harness.compilers.packed_launch import limited, packed_launch
from harness.compilers.ptx_text import bind_module
from harness.compilers.tensor_maps import keeping
from harness.compilers.toolchain import Call
from harness.compilers.toolchains import toolchain_of
from harness.model.plan import Launch
from harness.ptx.timestamps import stamped


def bind_stamped(
    launches: Sequence[Launch], arrays: Mapping[str, Any], rooms: Sequence[Any], gpu: NativeGpu, stamps: int
) -> list[Call]:
    """A call for each launch, which stamps into its array of `rooms`, with room for so many `stamps` per warp.

    Kernels of one module go on sharing its variables. Raises what `Toolchain.bind` does.
    """
    import numpy as np

    packed = [packed_launch(toolchain_of(launch.kernel), launch, arrays, gpu) for launch in launches]
    modules: dict[str, str] = {}
    for each in packed:
        compiled = each.compiled
        together = {
            other.compiled.entry: other.compiled for other in packed if other.compiled.module == compiled.module
        }
        if compiled.module not in modules:
            text = stamped(compiled.ptx, tuple(together), stamps)
            for other in together.values():
                text = limited(other, text)
            modules[compiled.module] = text
    return [
        keeping(
            each.kept,
            bind_module(
                modules[each.compiled.module].encode(),
                each.compiled.entry,
                launch,
                (*each.words, np.uint64(int(room.data.ptr))),
                gpu,
            ),
        )
        for launch, each, room in zip(launches, packed, rooms, strict=True)
    ]
