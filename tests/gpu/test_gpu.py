"""What can be said about the GPU executor without a GPU; the rest is in tests/gpu."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.gpu.executor import GpuExecutor
from harness.support.errors import SandboxError

ROOT = Path(__file__).resolve().parents[2]


def test_asking_for_a_gpu_never_raises_and_loads_no_compiler():
    program = (
        "import sys; from harness.gpu.executor import GpuExecutor; assert GpuExecutor.available() in (True, False);"
        "assert not {'numba', 'llvmlite'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_cupy_is_no_gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    assert GpuExecutor.available() is False
    with pytest.raises(SandboxError, match=r"no usable GPU: .*--device emulator"):
        GpuExecutor()


@pytest.mark.skipif(GpuExecutor.available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_line():
    with pytest.raises(SandboxError, match="no usable GPU") as caught:
        GpuExecutor()
    assert "\n" not in str(caught.value)
