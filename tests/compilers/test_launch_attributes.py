"""Launches with attributes: how the driver is told of them, without one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.compilers import launch_attributes
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
    config = launch_attributes.launch_configuration(Launch(KERNEL, grid, (32, 2), (), 512, cluster), 5, "sm_90")
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
    assert launch_attributes.bytes_of(argument) == expected


@pytest.mark.parametrize(
    ("cluster", "arch", "attributes"),
    [(None, "sm_90a", 1), ((2,), "sm_100", 2), ((2,), "sm_80", 1), (None, "sm_80", 0)],
)
def test_the_driver_is_told_that_a_launch_may_begin_early(
    cluster: tuple[int, ...] | None, arch: str, attributes: int
) -> None:
    launch = Launch(KERNEL, (4,), (32,), (), cluster=cluster, overlaps_previous=True)
    config = launch_attributes.launch_configuration(launch, 5, arch)
    assert launch_attributes.has_attributes(launch, arch) == bool(attributes)
    assert config.numAttrs == len(config.attrs) == attributes
    if arch != "sm_80":
        assert config.attrs[-1].id.name == "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION"
        assert config.attrs[-1].value.programmaticStreamSerializationAllowed == 1


def test_only_a_launch_with_an_attribute_goes_that_way(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        "harness.compilers.ptx_text.with_attributes", lambda function, launch, args, gpu: calls.append((function, args))
    )
    driver = FakeDriver()
    gpu = NativeGpu(driver, SimpleNamespace(ptr=3), "a GPU", "sm_90")
    bind_ptx(KERNEL.text, "k", Launch(KERNEL, (2,), (32,), (np.int32(1),)), {}, gpu)
    assert not calls
    bind_ptx(KERNEL.text, "k", Launch(KERNEL, (2,), (32,), (np.int32(1),), cluster=(2,)), {}, gpu)
    assert calls == [(7, (np.int32(1),))]
    bind_ptx(KERNEL.text, "k", Launch(KERNEL, (2,), (32,), (), overlaps_previous=True), {}, gpu)
    assert calls[1:] == [(7, ())]


def test_a_plan_from_another_process_keeps_its_attributes() -> None:
    from harness.execution.isolation.wire import plan_from_json, plan_to_json

    clusters = Launch(KERNEL, (4, 2), (32,), (), cluster=(2, 1))
    plan = Plan((clusters, Launch(KERNEL, (4, 2), (32,), (), overlaps_previous=True)))
    said = plan_to_json(plan, lambda launch: None, lambda argument: 0)
    launches = plan_from_json(said, lambda place, kernel: KERNEL).launches
    assert [(each.cluster, each.overlaps_previous) for each in launches] == [((2, 1), False), (None, True)]
