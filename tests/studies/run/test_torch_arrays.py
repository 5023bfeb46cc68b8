"""`harness.run` with tensors of PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import harness

pytestmark = pytest.mark.needs_cute


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_tensors_of_pytorch_go_in_and_come_out(dtype: str):
    import torch

    torch.manual_seed(0)
    wide = torch.randn(2, 40, 3, 2, 32).to(getattr(torch, dtype))  # (batch, len, Q K V, heads, head_dim)
    q, k, v = (each.transpose(1, 2) for each in wide.unbind(2))
    found = harness.run("fa2-mma-cupy", q=q.requires_grad_(), k=k, v=v, causal=True, layout="given", device="emulator")
    assert found.passed and found.result.problem.layout.text.startswith("strides:Q=7680/32/192/1,")
    O = found.outputs["O"]
    assert isinstance(O, torch.Tensor) and O.dtype == q.dtype and O.shape == q.shape
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.detach().float() for x in (q, k, v)), is_causal=True
    )
    assert np.allclose(O.float(), expected, atol=2e-2)
