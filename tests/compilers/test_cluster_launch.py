"""Launches in clusters: how the driver is told of them, without one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.compilers import cluster_launch
from harness.compilers.native_gpu import NativeGpu
from harness.compilers.ptx_text import PtxKernel, bind_ptx
from harness.model.plan import Launch, Plan
from tests.fakes.fake_driver import FakeDriver

KERNEL = PtxKernel(".version 8.0\n.target sm_90\n.address_size 64\n.entry k() { ret; }", "k")


@pytest.mark.parametrize(
    ("grid", "cluster", "told"),
    [((6,), (3,), (3, 1, 1)), ((4, 4, 2), (2, 1, 2), (2, 1, 2)), ((2, 4), (1, 4), (1, 4, 1))],
)
def test_the_driver_is_told_of_the_cluster(
    grid: tuple[int, ...], cluster: tuple[int, ...], told: tuple[int, ...]
) -> None:
    config = cluster_launch.launch_configuration(Launch(KERNEL, grid, (32, 2), (), 512, cluster), 5)
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (*grid, 1, 1)[:3]
    assert (config.blockDimX, config.blockDimY, config.blockDimZ, config.sharedMemBytes) == (32, 2, 1, 512)
    assert (int(config.hStream), config.numAttrs) == (5, 1)
    (attribute,) = config.attrs
    extents = attribute.value.clusterDim
    assert attribute.id.name == "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION"
    assert (extents.x, extents.y, extents.z) == told


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        (np.float32(1), b"\0\0\x80\x3f"),
        (np.void(b"abc"), b"abc"),
        (7, (7).to_bytes(8, "little")),
        (True, b"\1"),
        (SimpleNamespace(data=SimpleNamespace(ptr=0x1234)), (0x1234).to_bytes(8, "little")),
    ],
)
def test_arguments_are_what_cupy_would_pass(argument: Any, expected: bytes) -> None:
    assert cluster_launch.bytes_of(argument) == expected


def test_only_a_launch_with_a_cluster_goes_that_way(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        "harness.compilers.ptx_text.in_clusters", lambda function, launch, args, gpu: calls.append((function, args))
    )
    driver = FakeDriver()
    gpu = NativeGpu(driver, SimpleNamespace(ptr=3), "a GPU", "sm_90")
    bind_ptx(KERNEL.text, "k", Launch(KERNEL, (2,), (32,), (np.int32(1),)), {}, gpu)
    assert not calls
    bind_ptx(KERNEL.text, "k", Launch(KERNEL, (2,), (32,), (np.int32(1),), cluster=(2,)), {}, gpu)
    assert calls == [(7, (np.int32(1),))]


def test_a_plan_from_another_process_keeps_its_clusters() -> None:
    from harness.execution.isolation.wire import plan_from_json, plan_to_json

    plan = Plan((Launch(KERNEL, (4, 2), (32,), (), cluster=(2, 1)), Launch(KERNEL, (4, 2), (32,), ())))
    said = plan_to_json(plan, lambda launch: None, lambda argument: 0)
    assert [launch.cluster for launch in plan_from_json(said, lambda place, kernel: KERNEL).launches] == [(2, 1), None]
