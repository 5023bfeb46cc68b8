"""When a device optimizes a kernel: short ones at once, long ones when their launches have taken long enough."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.device import Device
from harness.emulator.emulated_gpu import EmulatedGpu
from harness.emulator.native.tier import SHORT_STATEMENTS, Tier


@pytest.mark.parametrize(
    ("seconds", "statements", "expected"),
    [
        (0.0, SHORT_STATEMENTS, Tier.OPTIMIZED),
        (0.0, SHORT_STATEMENTS + 1, Tier.BASELINE),
        (0.39, 1000, Tier.BASELINE),
        (0.41, 1000, Tier.OPTIMIZED),
    ],
)
def test_tier_by_seconds_and_length(seconds: float, statements: int, expected: Tier) -> None:
    assert Tier.after(seconds, ";" * statements) is expected


def module_of(statements: int) -> str:
    body = "add.u32 %r1, %r1, 1; " * statements
    return f""".version 8.0
.target sm_90
.address_size 64
.visible .entry count(.param .u64 out) {{
  .reg .b32 %r<2>; .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [out]; mov.u32 %r1, 0;
  {body}
  st.global.u32 [%rd1], %r1;
  ret;
}}"""


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("statements", "sanitize", "expected"),
    [(50, False, Tier.OPTIMIZED), (400, False, Tier.BASELINE), (50, True, Tier.BASELINE)],
)
def test_first_launches(statements: int, sanitize: bool, expected: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    """Instruments make optimized code long, so a sanitizing device optimizes nothing at once."""
    launch, tiers = EmulatedGpu.launch, []

    def watched(self: EmulatedGpu, *arguments: Any, **options: Any) -> Any:
        tiers.append(options["tier"])
        return launch(self, *arguments, **options)

    monkeypatch.setattr(EmulatedGpu, "launch", watched)
    with Device(sanitize=sanitize) as device:
        out = device.zeros(1, np.uint32)
        kernel = device.load_ptx(module_of(statements))["count"]
        device.launch(kernel, 1, 1, (out,))
        assert out.numpy().tolist() == [statements]
    assert tiers == [expected]
