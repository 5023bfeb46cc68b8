"""The emulator as tests of variants have it."""

from __future__ import annotations

from typing import Any

from lanes import is_exhaustive

from harness.emulator.executor import BRIEF_FLOPS, EmulatorExecutor


def emulator(**options: Any) -> EmulatorExecutor:
    """An executor that does not optimize kernels of brief problems, which gives the same bits in less time.

    In the exhaustive lane it optimizes all, as campaigns do.
    """
    return EmulatorExecutor(brief_flops=0.0 if is_exhaustive() else BRIEF_FLOPS, **options)
