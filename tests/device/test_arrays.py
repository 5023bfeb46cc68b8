"""Arrays on a device have any type, shape and strides; what no GPU has is refused in words."""

from __future__ import annotations

import gc

import ml_dtypes
import numpy as np
import pytest

from harness import Device, UsageError

DTYPES = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
    "complex64", "complex128", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_every_type_comes_back(dtype: object) -> None:
    values = np.array([0, 1, 1, 0, 1, 0]).astype(dtype).reshape(2, 3)  # type: ignore[call-overload]
    found = Device().array(values)
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(found.numpy(), values)


def test_views_share_memory_and_have_its_addresses() -> None:
    device = Device()
    x = device.array(np.arange(24, dtype=np.int32).reshape(4, 6))
    part = x[1:, ::-2]
    assert part.address == x.address + 4 * 6 + 4 * 5 and part.strides == (24, -8)
    part[...] = 0
    expected = np.arange(24).reshape(4, 6)
    expected[1:, ::-2] = 0
    np.testing.assert_array_equal(x, expected)
    assert x[0, 3] == 3 and x.T.shape == (6, 4) and x.reshape(24)[3:5].numpy().tolist() == [3, 4]
    with pytest.raises(UsageError, match="no view of shape"):
        x.T.reshape(24)
    with pytest.raises(UsageError, match="integers and slices"):
        x[[0, 2]]


def test_negative_and_repeated_strides() -> None:
    device = Device()
    backwards = device.empty((3,), np.int64, strides=(-8,))
    backwards[...] = [1, 2, 3]
    assert device.read(backwards.address - 16, 24) == np.array([3, 2, 1]).tobytes()
    same = device.empty((5, 2), np.int32, strides=(0, 4))
    assert device.allocation(same.address)[1] == 8


def test_fresh_memory_is_nan_and_lost_arrays_are_freed() -> None:
    device = Device()
    x = device.empty(3)
    assert np.isnan(x.numpy()).all()
    address = x.address
    view = x[1:]
    del x
    gc.collect()
    assert device.allocation(address) == (address, 12)
    del view
    gc.collect()
    with pytest.raises(UsageError, match="freed"):
        device.read(address, 4)


def test_a_closed_device_has_no_arrays() -> None:
    with Device() as device:
        x = device.zeros(3)
    with pytest.raises(UsageError, match="was freed"):
        x.numpy()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array(["a"]), "cannot be on a device"),
        (np.array([object()]), "cannot be"),
        (np.zeros(1, ">f4"), "byte order"),
    ],
)
def test_types_that_no_gpu_has_are_refused(values: np.ndarray, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Device().array(values)


def test_bad_shapes_and_places_are_refused() -> None:
    device = Device()
    with pytest.raises(UsageError, match="shape is"):
        device.zeros(-1)
    with pytest.raises(UsageError, match="no memory"):
        device.read(0, 4)
    with pytest.raises(UsageError, match="outside"):
        device.write(device.allocate(4), b"12345")
    with pytest.raises(UsageError, match="arch"):
        Device("hopper")
