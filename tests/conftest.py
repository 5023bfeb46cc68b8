"""Lets tests import the models and stand-ins that lie beside them, from any folder below."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "emulator")]
