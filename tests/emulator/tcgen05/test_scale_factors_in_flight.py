"""Scale factors that are not in tensor memory yet, as a user sees it: NaN, and findings of the sanitizer.

PTX ISA, section 9.7.16.6: stores are complete after tcgen05.wait::st.
"""

from __future__ import annotations

import numpy as np
import pytest
from planted_kernel import findings_of, values_of
from scaled_cases import PAIRED, SCALES, random_scaled, scaled_machine, scaled_memories, scaled_shared
from scaled_model import ScaledDescriptor
from tensor_machine import WAIT

DESCRIPTOR = ScaledDescriptor("mxf8f6f4", "e4m3", "e4m3", 128, 32).encode()
ONE_AND_A_HALF = 16
"""Elements of each row in f16's ones as pairs of e4m3: every second is 0."""
SUM = ONE_AND_A_HALF * (1.5 * 2.0) ** 2
DEFINE = (
    '#define SCALED() asm volatile("{\\n.reg .pred p;\\nsetp.ne.u32 p, 0, 0;\\n'
    'tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale [%0], %1, %2, %3, [%4], [%5], p;\\n}" '
    f':: "r"(base), "l"(DESCRIBED(s)), "l"(DESCRIBED(s + 1024)), "r"({DESCRIPTOR}u), '
    '"r"(base + 32), "r"(base + 40) : "memory")\n'
)
STORE = "for (int c = 0; c < 16; ++c) store1(mine + 32 + c, 0x80808080);\n"
MULTIPLY = "if (t == 0) { SCALED(); TRACK(1, &bar); }\nwait(&bar, 0); AFTER();\nREAD(3)"
WRITTEN = f"{DEFINE}{STORE}WRITTEN(); ALL();\n{MULTIPLY}"
NOT_WAITED_FOR = f"{DEFINE}{STORE}ALL();\n{MULTIPLY} WRITTEN();"
NEVER_WRITTEN = f"{DEFINE}{MULTIPLY}"


@pytest.mark.parametrize(("body", "value"), [(WRITTEN, SUM), (NOT_WAITED_FOR, np.nan), (NEVER_WRITTEN, np.nan)])
def test_values(body: str, value: float):
    """Scale factors of 2; NaN as long as nothing has been written."""
    assert np.array_equal(values_of(body), np.full((1, 128), value, np.float32), equal_nan=True)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("body", "kinds"), [(WRITTEN, []), (NOT_WAITED_FOR, ["RAW race"]), (NEVER_WRITTEN, ["uninitialised read"])]
)
def test_findings(body: str, kinds: list[str]):
    """At the product, in tensor memory."""
    found = findings_of(body)
    assert [finding.kind for finding in found] == kinds
    assert all(finding.target == "tensor memory" for finding in found)


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "blocks"), [("mxf4nvf4", 1), ("mxf8f6f4", 2)])
def test_correct_products(kind: str, blocks: int):
    """Programs of the other tests have no findings."""
    rng = np.random.default_rng(blocks)
    vector = ".scale_vec::4X" if blocks == 1 else ""
    machine = PAIRED if blocks == 2 else scaled_machine(opcodes=[f"mma.kind::{kind}.block_scale{vector}"])
    form = ScaledDescriptor(kind, "e2m1", "e2m1", 128 * blocks, 32)
    steps = [random_scaled(rng, form, vector, 32 * i, in_tensor_memory=i > 0, blocks=blocks) for i in range(2)]
    program = [each for step in steps for each in (step, WAIT)]
    shareds = [scaled_shared(rng, form) for _ in range(blocks)]
    assert not machine.findings(program, shareds, scaled_memories(rng, form, blocks, np.array(SCALES["ue8m0"])))
