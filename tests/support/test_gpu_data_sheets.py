from __future__ import annotations

import pytest

from harness.support.errors import UsageError
from harness.support.gpu_data_sheets import GPUS, gpu, gpu_like, usual_gpu
from harness.support.memory_units import KIB, MIB


def test_names_in_any_case():
    assert gpu("H200") is GPUS["h200"]
    with pytest.raises(UsageError, match="no GPU 'h20' in the table; choose one of h200, "):
        gpu("h20")


@pytest.mark.parametrize("name", GPUS)
def test_every_figure_is_plausible_and_has_a_source(name: str):
    found = GPUS[name]
    # From the smallest card to the largest; a slip of a thousand would stand out.
    assert 1e11 < found.memory_bytes_per_s < 1e13
    assert 5e12 < found.float32_flops < 2e14
    assert all(found.float32_flops < flops < 5e15 for flops in found.tensor_flops.values())
    assert found.source.startswith("NVIDIA ")
    sm = found.multiprocessor
    assert 16 <= found.multiprocessors <= 256
    assert 4 * MIB <= found.l2_bytes <= 128 * MIB
    assert found.l2_partitions in (1, 2)
    assert sm.l1_bytes > max(sm.carve_outs_bytes) >= 64 * KIB
    assert sorted(sm.carve_outs_bytes) == list(sm.carve_outs_bytes)


@pytest.mark.parametrize(
    ("said", "name"),
    [("NVIDIA H200", "h200"), ("NVIDIA GeForce RTX 4090", "rtx4090"), ("Tesla T4", "t4"), ("NVIDIA B200", "b200")],
)
def test_a_gpu_is_known_by_what_its_driver_calls_it(said: str, name: str):
    assert gpu_like(said) is GPUS[name]


def test_an_architecture_has_a_usual_gpu():
    assert usual_gpu("sm_100a") is usual_gpu("sm_100") is GPUS["b200"]
    assert usual_gpu("sm_90a") is usual_gpu("sm_80") is GPUS["h200"]


def test_a_gpu_that_is_not_in_the_table_is_like_none():
    assert gpu_like("NVIDIA GeForce GTX 1080") is None
    assert gpu_like("NVIDIA L40") is None
    assert gpu_like("NVIDIA L40S") is GPUS["l40s"]
