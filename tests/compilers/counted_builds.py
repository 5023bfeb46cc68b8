"""How often NVRTC and Numba really compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.compilers.cupy import nvrtc
from harness.compilers.numba import dispatcher


class Builds:
    """How often the compilers really ran."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for module, name in ((nvrtc, "compile_source"), (dispatcher, "_run_numba")):
            monkeypatch.setattr(module, name, self._counting(getattr(module, name)))

    def _counting(self, compiler: Callable[..., str]) -> Callable[..., str]:
        def compile_counted(*args: Any, **options: Any) -> str:
            self.count += 1
            return compiler(*args, **options)

        return compile_counted
