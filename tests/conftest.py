"""Lets tests import the models and stand-ins that lie beside them, from any folder below."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
