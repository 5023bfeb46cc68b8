"""What `show --expanded` lists of a Numba kernel."""

from __future__ import annotations

from numba import cuda

from harness.compilers.numba.expanded import expand


def maker(width: int, doubles: bool):
    WIDTH = width

    @cuda.jit(device=True)
    def twice(x):
        return x + x

    @cuda.jit(device=True)
    def same(x):
        return x

    change = twice if doubles else same

    @cuda.jit
    def kernel(x):
        for i in range(WIDTH):
            x[i] = change(x[i])  # of each

    return kernel


def test_the_device_functions_that_the_maker_chose_and_the_constants_are_listed():
    text = expand(maker(4, True))
    assert "def twice(x):\n    return x + x\n" in text and "def same" not in text
    assert "WIDTH = 4\n" in text and "# change: twice of test_numba_expanded.py:" in text
    assert text.index("def twice") < text.index("def kernel") and "# of each" in text
    assert "def same" in expand(maker(4, False))
