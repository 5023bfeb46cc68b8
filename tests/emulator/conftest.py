"""Every kernel of the tests of opcodes is held against what a GPU answered, once the test's own expectations are met.

A test whose kernels no GPU has answered yet needs none: it is passed, and the comparison alone is skipped.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import single_opcode

from scripts.recording.opcode_kernel import Launched
from scripts.recording.opcode_record import OpcodeRecord, hold_against, is_recorded, key_of, load

RECORD = Path(__file__).parents[1] / "hardware" / "opcodes_h200.zip"
RECORDER = "opcode-recorder"
"""The plugin of scripts/record_opcodes.py: while it makes a new record, the old one is not asked."""


@functools.cache
def record() -> OpcodeRecord:
    return load(RECORD)


@pytest.fixture(autouse=True)
def _numbers_of_its_own(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test draws the same numbers whichever tests ran before it."""
    if hasattr(request.module, "RNG"):
        seed = zlib.crc32(key_of(request.node.nodeid).encode())
        monkeypatch.setattr(request.module, "RNG", np.random.default_rng(seed))


@pytest.fixture(autouse=True)
def _held_against_the_hardware(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    key = key_of(request.node.nodeid)
    if not is_recorded(key) or request.config.pluginmanager.has_plugin(RECORDER):
        yield
        return
    launched: list[Launched] = []
    monkeypatch.setattr(single_opcode, "LISTENERS", [launched.append])
    yield
    hold_against(record(), key, launched)
