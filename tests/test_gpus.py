from __future__ import annotations

import pytest

from harness.errors import UsageError
from harness.gpus import GPUS, gpu


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
    assert all(found.float32_flops < flops < 2e15 for flops in found.tensor_flops.values())
    assert found.source.startswith("NVIDIA ")
