"""The dependencies of the package for the CUDA version in the environment variable SANDBOX_CUDA: 12, 12.6 or 13.

Unset, it is 12.6, the smallest; the scripts set 12 (scripts/environment.sh).

An extra cannot replace a dependency, and the CuPy packages for CUDA 12 and 13 exclude each other.
"""

from __future__ import annotations

import os

from setuptools import setup

# What `list`, `compare`, `traffic`, `why`, `show` and `report` need. requirements.txt has these and the extras for work
# on the project.
DEPENDENCIES = [
    # llvmlite, which the emulator compiles with, comes with numba: 0.62 is the first with an LLVM that has opaque
    # pointers.
    "numba>=0.62",
    "numpy>=2.0,<2.5",  # 2.5 removed np.row_stack, which numba-cuda 0.30 uses
    "ml_dtypes>=0.5",
    "jinja2>=3.1",  # the page of `report`, and results in notebooks
    "nvidia-ml-py>=12",  # reads the GPU's clocks during `bench`
    "tabulate>=0.9",
    "threadpoolctl>=3.1",  # limits the threads of NumPy's BLAS while the reference is computed on all cores
    "tqdm>=4.60",
]

# The kernels' packages, then NVRTC, the headers that kernels include (cuda_fp16.h, mma.h, cuda/std), libNVVM and ptxas.
# None of them needs a GPU.
CUDA_DEPENDENCIES = {
    "12": [
        "cupy-cuda12x>=14.0",
        "numba-cuda[cu12]>=0.23",
        "nvidia-cuda-nvrtc-cu12",
        "nvidia-cuda-runtime-cu12",
        "nvidia-cuda-nvcc-cu12",
        "nvidia-cuda-cccl-cu12",
    ],
    # The compilers of CUDA 12.6 do not know Blackwell GPUs, and take 250 MB less: from 12.8 on, NVRTC, libNVVM and
    # nvJitLink contain a second version of LLVM, and NVRTC comes twice. Builds of PyTorch for CUDA 12.8 and 12.9 pin
    # other versions of the same packages; next to one of them, install with SANDBOX_CUDA=12.
    "12.6": [
        "cupy-cuda12x>=14.0",
        "numba-cuda[cu12]>=0.23",
        "cuda-toolkit==12.6.*",
        "nvidia-cuda-nvrtc-cu12==12.6.*",
        "nvidia-cuda-runtime-cu12==12.6.*",
        "nvidia-cuda-nvcc-cu12==12.6.*",
        "nvidia-cuda-cccl-cu12==12.6.*",
        "nvidia-nvjitlink-cu12==12.6.*",
    ],
    "13": [
        "cupy-cuda13x>=14.0",
        "numba-cuda[cu13]>=0.23",
        "nvidia-cuda-nvrtc==13.*",
        "nvidia-cuda-runtime==13.*",
        "nvidia-cuda-nvcc==13.*",
        "nvidia-cuda-cccl==13.*",
        "nvidia-nvvm==13.*",
    ],
}

DEFAULT_CUDA = "12.6"
"""What `pip install .` installs: a core of less than 1 GB."""


def dependencies(cuda: str) -> list[str]:
    """Return the requirements of the package with this CUDA version. Exits with one line for an unknown version."""
    if cuda not in CUDA_DEPENDENCIES:
        raise SystemExit(f"SANDBOX_CUDA is {cuda!r}; set it to 12, 12.6 or 13, or unset it ({DEFAULT_CUDA})")
    return [*DEPENDENCIES, *CUDA_DEPENDENCIES[cuda]]


if __name__ == "__main__":
    setup(install_requires=dependencies(os.environ.get("SANDBOX_CUDA") or DEFAULT_CUDA))
