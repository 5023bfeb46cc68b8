"""cp.reduce.async.bulk: every operation and type, runs of bytes and boxes of tensors, and what the sanitizer says."""

from __future__ import annotations

import numpy as np
import pytest

from harness.model.tensor_map import TensorMap
from harness.support.errors import KernelFault
from tests.emulator.bulk_reductions import FORMS, RUN, TENSOR, TYPES, drawn, every_form, model
from tests.emulator.hopper_kernel import HEAD, run_hopper
from tests.emulator.sanitized_kernel import find, lines


def test_every_operation_on_every_type() -> None:
    rng = np.random.default_rng(5)
    old, new = ([drawn(form, rng) for form in FORMS] for _ in range(2))
    new[3][:4] = [0, 0, -1.19e-38, 1.19e-38]
    arrays = {name: np.concatenate([v.view(np.uint8) for v in values]) for name, values in (("x", new), ("y", old))}
    after, counts = run_hopper(every_form(), arrays, ("x", "y"), block=(1, 1, 1), shared_bytes=RUN * len(FORMS))
    for i, form in enumerate(FORMS):
        found = after["y"][RUN * i : RUN * (i + 1)].view(TYPES[form.split(".")[-1]])
        expected = model(form, old[i], new[i])
        assert np.array_equal(found.view(np.uint8), expected.view(np.uint8)), (form, found, expected)
    traffic = [site for site in counts.sites if site.buffer == "y"]
    assert {(site.kind, site.requests, site.requested_bytes, site.sectors) for site in traffic} == {
        ("atomic", 1, 64, 2)
    }
    assert len(traffic) == len(FORMS)


@pytest.mark.parametrize("operation", ["min", "max"])
def test_zeros_and_nan_of_sixteen_bits(operation: str) -> None:
    """-0 is below +0, and a NaN gives way."""
    old = np.array([-0.0, 0.0, np.nan, 1, np.nan, 2, np.inf, -np.inf], np.float16)
    new = np.array([0.0, -0.0, 3, np.nan, np.nan, 2, 1, 1], np.float16)
    source = f"""extern "C" __global__ void k(unsigned* x, unsigned* y) {{
      __shared__ __align__(16) unsigned s[4];
      for (int i = 0; i < 4; ++i) s[i] = x[i];
      asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.{operation}.f16 [%0], [%1], 16;"
        ::"l"(y), "r"(place_of(s)) : "memory");
      COMMIT(); STORED();
    }}"""
    found = run_hopper(source, {"x": new, "y": old}, ("x", "y"), block=(1, 1, 1))[0]["y"].view(np.uint16)
    least = operation == "min"
    expected = [0x8000 if least else 0, 0x8000 if least else 0, 0x4200, 0x3C00, 0x7FFF, 0x4000]
    expected += [0x3C00, 0xFC00] if least else [0x7C00, 0x3C00]
    assert found.tolist() == expected


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_a_box_is_added_where_the_tensor_is(dtype: str) -> None:
    """Twice, by two blocks. Rows beyond the tensor change nothing; its columns end with a whole piece of four."""
    y = np.arange(64 * 32, dtype=dtype).reshape(64, 32)
    x = np.arange(256, dtype=dtype)
    tensor = TensorMap("y", (30, 40), (128,), (16, 16), dtype)
    args = (tensor, "x", np.int32(20), np.int32(27))
    after, counts = run_hopper(TENSOR, {"y": y, "x": x}, args, grid=(2, 1, 1))
    expected = y.copy()
    expected[27:40, 20:32] += 4 * x.reshape(16, 16)[:13, :12]
    assert np.array_equal(after["y"], expected)
    traffic = [site for site in counts.sites if site.buffer == "y"]
    assert {site.kind for site in traffic} == {"atomic"}
    assert sum(site.requested_bytes for site in traffic) == 2 * 2 * 13 * 48


@pytest.mark.parametrize(
    ("operation", "dtype"), [("xor", "float32"), ("add", "int64"), ("or", "int64"), ("inc", "int32")]
)
def test_a_type_that_cannot_be_combined(operation: str, dtype: str) -> None:
    source = TENSOR.replace("cta.add", f"cta.{operation}")
    args = (TensorMap("y", (16, 64), (128,), (16, 16), dtype), "x", np.int32(0), np.int32(0))
    arrays = {"y": np.zeros((64, 16), dtype), "x": np.zeros(512, np.float32)}
    with pytest.raises(KernelFault, match=f"this reduction is not defined for tensors of {dtype}") as caught:
        run_hopper(source, arrays, args)
    assert caught.value.kind == "reduction type"


SUMS = f"""{HEAD}
#line 1 "planted.cu"
extern "C" __global__ void k(float* y, float* z) {{
  __shared__ __align__(128) float s[32]; int t = threadIdx.x;
  s[t] = t;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncwarp();
  if (t == 0) {{
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 128;"
      ::"l"(y), "r"(place_of(s)) : "memory");
    COMMIT(); STORED();
  }}
}}"""
"""The reduction is line 8."""


def findings(*change: str, unwritten: str = "") -> set[tuple[str, int, int | None]]:
    import cupy

    source = SUMS.replace(*change) if change else SUMS
    assert (source == SUMS) == (not change)
    arrays = {name: np.zeros(32, np.float32) for name in "yz"}
    kernel = cupy.RawKernel(source, "k", options=("-arch=sm_90a",))
    return {lines(finding) for finding in find(kernel, arrays, ("y", "z"), unwritten, grid=(2, 1, 1))}


def test_reductions_of_two_blocks_do_not_race() -> None:
    """They are atomic, and have to find something."""
    assert findings() == set()
    assert findings(unwritten="y z") == {("uninitialised read", 8, None)}


@pytest.mark.parametrize(
    ("access", "kinds"),
    [
        ("y[t] = 1.f;", {("WAW race", 3, 8), ("WAW race", 8, 3)}),
        ("z[t] = y[t];", {("RAW race", 3, 8), ("WAR race", 8, 3)}),
    ],
)
def test_an_ordinary_access_of_another_block_races_with_a_reduction(
    access: str, kinds: set[tuple[str, int, int | None]]
) -> None:
    found = findings("s[t] = t;", f"if (blockIdx.x == ORDER) {access} s[t] = t;".replace("ORDER", "1"))
    found |= findings("s[t] = t;", f"if (blockIdx.x == ORDER) {access} s[t] = t;".replace("ORDER", "0"))
    assert kinds <= found


def test_what_a_block_did_not_wait_for_is_no_matter_of_the_next_one() -> None:
    """Blocks have shared memory of their own, if in one place."""
    assert findings("COMMIT(); STORED();", "") == {("store not awaited", 8, None)}


def test_a_source_that_changes_before_the_wait_races_with_the_reduction() -> None:
    assert findings("COMMIT(); STORED();", "COMMIT(); s[0] = 1.f; STORED();") == {("WAR race", 9, 8)}
