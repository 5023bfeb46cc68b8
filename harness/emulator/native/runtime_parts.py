"""Divides the runtime into parts, so that parts that no kernel calls are not compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from harness.emulator.codegen.cpu import Cpu
from harness.emulator.codegen.functions.atomic_rounds import FIRST_OF_EACH, GATHERS, SCATTERS, atomic_rounds_ir
from harness.emulator.codegen.functions.distinct_offsets import distinct_offsets_ir
from harness.emulator.codegen.functions.global_accesses import (
    GLOBAL_LOADS,
    GLOBAL_STORES,
    TRANSLATE,
    global_accesses_ir,
)
from harness.emulator.codegen.functions.local_accesses import LOCAL_LOADS, LOCAL_STORES, local_accesses_ir
from harness.emulator.codegen.functions.reductions import REDUCTIONS, reductions_ir
from harness.emulator.codegen.functions.shared_loads import SHARED_LOADS, shared_loads_ir
from harness.emulator.codegen.matrix.column_products import COLUMN_PRODUCTS, column_products_ir
from harness.emulator.codegen.matrix.converted_products import CONVERTED_PRODUCTS, converted_ir
from harness.emulator.codegen.matrix.dot_product import DOT_PRODUCTS, WARPGROUP_PRODUCTS, runtime_ir
from harness.emulator.codegen.matrix.eight_bit_products import (
    INTEGER_PRODUCTS,
    WARPGROUP_FLOATS,
    WARPGROUP_INTEGERS,
    floats_ir,
    integers_ir,
)
from harness.emulator.memory import async_copies, async_proxy, caches
from harness.emulator.memory.tensor_memory import exports as tensor_cores
from harness.emulator.memory.textures import sampling as textures
from harness.emulator.memory.textures import watched as watched_textures
from harness.emulator.runtime import exports, system_calls


@dataclass(frozen=True)
class Part:
    """Functions of the runtime that are compiled into one object file."""

    exports: Mapping[str, Callable[..., int]] = field(default_factory=dict)
    """Functions written in the Python subset, by their names."""
    emitted: tuple[str, ...] = ()
    """Names of functions that are written in LLVM IR."""
    ir: tuple[Callable[[], str], ...] = ()
    """Each returns the LLVM IR of some of these functions."""
    tuned_ir: tuple[Callable[[Cpu], str], ...] = ()
    """Each returns that of a function that these call, which depends on the CPU."""


PARTS = {
    "core": Part(
        exports.CORE,
        emitted=(
            *(name for table in (SHARED_LOADS, GLOBAL_LOADS, GLOBAL_STORES) for name in table.values()),
            TRANSLATE,
        ),
        ir=(shared_loads_ir, global_accesses_ir),
        tuned_ir=(distinct_offsets_ir,),
    ),
    "local accesses": Part(
        emitted=(*LOCAL_LOADS.values(), *LOCAL_STORES.values()),
        ir=(local_accesses_ir,),
    ),
    "atomics": Part(emitted=(FIRST_OF_EACH, *GATHERS.values(), *SCATTERS.values()), ir=(atomic_rounds_ir,)),
    "sanitizer": Part(exports.SANITIZER),
    "system calls": Part(system_calls.EXPORTS),
    "copies": Part(async_copies.EXPORTS),
    "async proxy": Part(async_proxy.EXPORTS),
    "tensor cores": Part(tensor_cores.EXPORTS),
    "column products": Part(
        emitted=tuple(product.name for product in COLUMN_PRODUCTS.values()),
        ir=(column_products_ir,),
    ),
    "caches": Part(caches.EXPORTS),
    "textures": Part(textures.EXPORTS),
    "watched textures": Part(watched_textures.EXPORTS),
    "dot products": Part(
        emitted=(
            *(product.name for product in DOT_PRODUCTS.values()),
            *(product.slice_name for product in WARPGROUP_PRODUCTS.values()),
        ),
        ir=(runtime_ir,),
    ),
    "products of integers": Part(
        emitted=(
            *{product.name: None for product in INTEGER_PRODUCTS.values()},
            *(product.slice_name for product in WARPGROUP_INTEGERS),
        ),
        ir=(integers_ir,),
    ),
    "products of 8-bit floats": Part(
        emitted=tuple(product.slice_name for product in WARPGROUP_FLOATS),
        ir=(floats_ir,),
    ),
    "reductions": Part(emitted=tuple(REDUCTIONS), ir=(reductions_ir,)),
    "converted products": Part(
        emitted=tuple({product.name: None for product in CONVERTED_PRODUCTS.values()}),
        ir=(converted_ir,),
    ),
}
"""All parts by name. A function that a part calls and does not export is copied into it."""


def parts_of(functions: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the parts that contain these functions."""
    homes = _homes()
    return tuple(sorted({homes[name] for name in functions}))


@cache
def _homes() -> dict[str, str]:
    """Return the part of each function."""
    return {name: title for title, part in PARTS.items() for name in (*part.exports, *part.emitted)}
