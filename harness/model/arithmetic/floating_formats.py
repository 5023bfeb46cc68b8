"""Constants of the floating-point formats that problems and kernels use: IEEE 754, bfloat16 and e4m3."""

from __future__ import annotations

U = 2.0**-24
"""Unit roundoff of float32, in which every kernel accumulates."""
UNIT_ROUNDOFF = {"float32": U, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Largest relative error of rounding a normal number to nearest."""
SMALLEST_STEP = {"float32": 2.0**-126, "float16": 2.0**-25, "bfloat16": 2.0**-126}
"""Largest absolute error of storing a subnormal number. float32 and bfloat16 may be flushed to zero."""
LARGEST = {"float32": float.fromhex("0x1.fffffep127"), "float16": 65504.0, "bfloat16": float.fromhex("0x1.fep127")}
"""Largest finite value."""

E4M3_UNIT_ROUNDOFF = 2.0**-4
E4M3_LARGEST = 448.0
E4M3_SMALLEST_NORMAL = 2.0**-6
E4M3_SMALLEST_STEP = 2.0**-10
"""Largest absolute error of rounding a subnormal number to e4m3."""
