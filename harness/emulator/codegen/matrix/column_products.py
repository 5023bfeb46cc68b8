"""Products of Blackwell's tensor cores (`tcgen05.mma`), by types of A, B and D; `column_writers.py` writes them.

The arithmetic is that of `dot_product.py`: an exact sum of C and all products of a row and a column, truncated 25 bits
below the largest exponent. For f16, bf16 and tf32, this is what an H200 does. Xie and others, "MMA-Sim" (2025), have
found the same on a B200, also for 8-bit floats, for which Hopper keeps only 13 bits; this module follows them. No
Blackwell GPU has been compared with it. Floats of 6 and 4 bits, and block scaling, follow the same rule here; see
`narrow_columns.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.emulator.codegen.matrix.column_writers import Columns, FloatColumns, IntegerColumns
from harness.emulator.codegen.matrix.dot_product import FORMATS
from harness.emulator.codegen.matrix.fragments import MmaLayout, mma_layout
from harness.emulator.codegen.matrix.narrow_columns import NarrowColumns, PackedScaledColumns, ScaledColumns
from harness.emulator.codegen.vector_ir_builder import module_ir


@dataclass(frozen=True)
class ColumnProduct:
    """The product of one kind of operands."""

    kind: str
    """Type of the factors: `f16`, `bf16`, `tf32`, `int8`, `fp8` (floats of 8, 6 or 4 bits, each in a byte), `mxfp8`
    (the same with scales) or `mxfp4` (e2m1 with scales, two in a byte)."""
    accumulator: str
    """Type of D."""

    @property
    def name(self) -> str:
        """Name of the function in the runtime. Its argument is the address of `COLUMNS_D` and what follows."""
        return f"columns_{self.kind}_{self.accumulator}"

    @property
    def bits(self) -> int:
        """Bits of a factor."""
        return {"tf32": 32, "fp8": 8, "int8": 8, "mxfp8": 8, "mxfp4": 4}.get(self.kind, 16)

    @property
    def layout(self) -> MmaLayout:
        """A layout with the same K and types."""
        return mma_layout(256 // self.bits, self.bits, 16 if self.accumulator == "f16" else 32)

    def lines(self) -> tuple[list[str], set[str]]:
        """The function as LLVM IR, and the declarations that it needs."""
        writer = self._writer()
        return writer.columns_function(self.name), writer.declarations

    def _writer(self) -> Columns:
        accumulator = self.layout, FORMATS.get(self.accumulator, FORMATS["f32"])
        if self.kind == "int8":
            return IntegerColumns(self.layout)
        if self.kind in FORMATS:
            return FloatColumns(self.layout, FORMATS[self.kind], accumulator[1])
        return {"fp8": NarrowColumns, "mxfp8": ScaledColumns, "mxfp4": PackedScaledColumns}[self.kind](*accumulator)


COLUMN_PRODUCTS = {
    (kind, accumulator): ColumnProduct(kind, accumulator)
    for kind, accumulator in (
        ("f16", "f32"), ("bf16", "f32"), ("f16", "f16"), ("tf32", "f32"), ("fp8", "f32"), ("fp8", "f16"),
        ("int8", "s32"), ("mxfp8", "f32"), ("mxfp4", "f32"),
    )
}  # fmt: skip
"""Products by types of the factors and of D."""


def column_products_ir() -> str:
    """All functions, as LLVM IR."""
    return module_ir(product.lines() for product in COLUMN_PRODUCTS.values())
