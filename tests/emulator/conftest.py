"""Every kernel of the tests of opcodes is held against what a GPU answered, beside what the test itself expects."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import single_opcode

from scripts.recording.opcode_kernel import Launched
from scripts.recording.opcode_record import OpcodeRecord, differences, is_recorded, key_of, load

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
    answers = record().answers.get(key, [])
    if [one.digest for one in launched] != [answer.digest for answer in answers]:
        pytest.fail(
            f"the record of opcodes is stale: the kernels or operands of {key} are others than those that "
            f"{record().environment['gpu']} answered on {record().environment['date']}; run "
            "scripts/record_opcodes.py on a GPU"
        )
    found = [line for one, answer in zip(launched, answers) for line in differences(key, one, answer)]
    assert not found, "\n".join(found)
