"""The emulator as tests of variants have it."""

from __future__ import annotations

from typing import Any

from lanes import is_exhaustive

from harness.emulator.executor import BRIEF_FLOPS, EmulatorExecutor
from harness.execution.run_settings import DEFAULT_SETTINGS, RunSettings


def emulator(settings: RunSettings = DEFAULT_SETTINGS, **options: Any) -> EmulatorExecutor:
    """An executor as commands have it, which optimizes no kernels of brief problems; in the exhaustive lane it does."""
    return EmulatorExecutor(settings, brief_flops=0.0 if is_exhaustive() else BRIEF_FLOPS, **options)
