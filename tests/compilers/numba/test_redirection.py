"""numba-cuda takes the place of numba.cuda even in a Python that started before it was installed, as in a notebook."""

from __future__ import annotations

import subprocess
import sys

STARTED_BEFORE = """
import sys
sys.meta_path = [each for each in sys.meta_path if type(each).__name__ != "NumbaCudaFinder"]
sys.modules.pop("_numba_cuda_redirector", None)
"""
IMPORTED = """
from numba import cuda
print(cuda.__file__)
"""


def test_numba_cuda_is_found_without_a_new_start() -> None:
    found = []
    for imports in ("", "import harness"):
        program = f"{STARTED_BEFORE}{imports}{IMPORTED}"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        found.append("numba_cuda" in done.stdout)
    assert found == [False, True]
