"""What a GPU answered to the kernels of tests/emulator/test_opcodes_*.py, and how far the emulator may be from it.

The tests themselves are the list of cases. scripts/record_opcodes.py runs them where there is a GPU and records what it
left in memory; operands are not recorded, the tests draw them from fixed seeds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from harness.ptx.statements import instructions
from scripts.recording.approximations import approximation
from scripts.recording.archive import pack, unpack
from scripts.recording.opcode_kernel import Case, Launched

Array = npt.NDArray[Any]

NOT_COMPARABLE = {
    "test_clocks_tick_once_per_instruction": "the emulator's clock counts instructions",
    "test_places_of_warps": "a multiprocessor gives a warp the place that is free",
}
"""Tests whose kernels answer something else on every machine, and why."""

ORDER_DEPENDENT = {
    "test_opcodes_atomics.py::test_every_operation[shared]": ("found", "which lane's atomic comes first"),
    "test_opcodes_memory.py::test_a_global_variable_is_one_for_all_blocks": ("out", "which block comes first"),
}
"""Tests with a buffer whose content depends on an order that hardware is free to choose: not compared."""

LARGE_BYTES = 32 * 1024
"""A buffer beyond that is not recorded whole, but where a kernel is made of cases."""
SAMPLE_BYTES = 1024
"""Bytes of a large buffer that are recorded in full, so that a difference can be read."""
PIECE_BYTES, DIGEST_BYTES = 4096, 8
"""Size of the pieces of a large buffer that are hashed, and of their digests."""


def key_of(nodeid: str) -> str:
    """File and name of a test, without the folders."""
    return nodeid.rpartition("/")[2]


def is_recorded(key: str) -> bool:
    """Whether the kernels of this test belong into the record."""
    file, _, name = key.partition("::")
    return file.startswith("test_opcodes_") and name.partition("[")[0] not in NOT_COMPARABLE


@dataclass(frozen=True)
class Answer:
    """What the GPU left of one kernel."""

    digest: str
    """Digest of the kernel and its inputs (`Launched.digest`)."""
    after: dict[str, bytes]
    """The buffers that it changed."""
    refused: tuple[int, ...] = ()
    """Cases of `run_cases` that the GPU's assembler rejects, because they are for later GPUs or for none."""
    abridged: dict[str, bytes] = field(default_factory=dict)
    """For each large buffer that it changed, the first bytes and a digest of each piece."""


def answer_to(launched: Launched, after: Mapping[str, Array], refused: tuple[int, ...] = ()) -> Answer:
    """What is recorded where a GPU left these buffers."""
    changed = {name: data.tobytes() for name, data in after.items() if (data != launched.before[name]).any()}
    large = {name for name, data in changed.items() if len(data) > LARGE_BYTES and launched.module is None}
    abridged = {name: abridge(changed.pop(name)) for name in sorted(large)}
    return Answer(launched.digest, changed, refused, abridged)


def abridge(data: bytes) -> bytes:
    """The first bytes, and a digest of each piece behind them."""
    pieces = (data[first : first + PIECE_BYTES] for first in range(0, len(data), PIECE_BYTES))
    return data[:SAMPLE_BYTES] + b"".join(hashlib.blake2b(p, digest_size=DIGEST_BYTES).digest() for p in pieces)


@dataclass(frozen=True)
class OpcodeRecord:
    """The whole record."""

    environment: dict[str, str]
    answers: dict[str, list[Answer]]
    """Answers of each test, in the order of its launches."""
    opcodes: list[str]
    """All opcodes that ran."""


def save(record: OpcodeRecord) -> bytes:
    """The record as a file."""
    tests = {
        key: [
            {
                "digest": answer.digest,
                "sizes": {name: len(data) for name, data in answer.after.items()},
                "refused": answer.refused,
                "abridged": {name: len(data) for name, data in answer.abridged.items()},
            }
            for answer in answers
        ]
        for key, answers in record.answers.items()
    }
    parts = [
        data
        for answers in record.answers.values()
        for answer in answers
        for data in (*answer.after.values(), *answer.abridged.values())
    ]
    return pack({"environment": record.environment, "opcodes": record.opcodes, "tests": tests}, parts)


def load(path: Path) -> OpcodeRecord:
    """The inverse of `save`."""
    index, reader = unpack(path)
    answers = {
        key: [
            Answer(
                row["digest"],
                dict(reader.take(row["sizes"])),
                tuple(row["refused"]),
                dict(reader.take(row["abridged"])),
            )
            for row in rows
        ]
        for key, rows in index["tests"].items()
    }
    return OpcodeRecord(index["environment"], answers, index["opcodes"])


def opcodes_of(text: str) -> set[str]:
    """The opcodes of PTX text, without their modifiers."""
    return {form.partition(".")[0] for form, _ in instructions(text)}


def hold_against(record: OpcodeRecord, key: str, launched: Sequence[Launched]) -> None:
    """Fail where the emulator's answers are others than the recorded ones; skip where a kernel has no recorded answer.

    A kernel whose text or operands have changed is another one, and has none.
    """
    answers = {answer.digest: answer for answer in record.answers.get(key, [])}
    known = [(one, answers[one.digest]) for one in launched if one.digest in answers]
    found = [line for one, answer in known for line in differences(key, one, answer)]
    assert not found, "\n".join(found)
    if len(known) < len(launched):
        pytest.skip(
            f"{len(launched) - len(known)} of the {len(launched)} kernels of {key} are not in the record of what "
            f"{record.environment['gpu']} answered on {record.environment['date']}; scripts/record_opcodes.py makes a "
            "new one, on a GPU"
        )


def differences(key: str, launched: Launched, answer: Answer) -> Iterator[str]:
    """Where the emulator's answer is another than the GPU's by more than it may be, a line each."""
    passed_over = ORDER_DEPENDENT.get(key, ("", ""))[0]
    theirs = {name: np.frombuffer(answer.after.get(name, b""), np.uint8) for name in launched.after}
    theirs = {name: data if data.size else launched.before[name] for name, data in theirs.items()}
    if launched.module is None:
        for name, ours in launched.after.items():
            if name in answer.abridged:
                yield from _differences_in_large(name, ours, answer.abridged[name])
            elif name != passed_over:
                yield from _differing_bytes(f"buffer {name}", ours, theirs[name])
        return
    unpacked = (launched.module.unpack(buffers["results"]) for buffers in (launched.after, theirs))
    for index, (single, ours, expected) in enumerate(zip(launched.module.cases, *unpacked)):
        if index in answer.refused:
            continue
        for number, (got, wanted) in enumerate(zip(ours, expected)):
            wrong = ~agrees(single, got, wanted)
            if wrong.any():
                place = int(np.argmax(wrong))
                operands = [hex(o.reshape(-1)[place]) for o in np.broadcast_arrays(*single.operands)]
                yield (
                    f"{single.text} with {', '.join(operands)} gives {hex(got[place])} as result {number} where the "
                    f"GPU has {hex(wanted[place])}; {int(wrong.sum())} of {wrong.size} differ"
                )


def _differing_bytes(what: str, ours: Array, theirs: Array) -> Iterator[str]:
    wrong = np.flatnonzero(ours != theirs)
    if wrong.size:
        place = int(wrong[0])
        yield (
            f"{what}: {wrong.size} of {ours.size} bytes differ, the first at {place}: "
            f"{ours[place]:#x} where the GPU has {theirs[place]:#x}"
        )


def _differences_in_large(name: str, ours: Array, theirs: bytes) -> Iterator[str]:
    """Pieces whose digests differ, and, of the beginning, bytes."""
    sample = np.frombuffer(theirs[:SAMPLE_BYTES], np.uint8)
    yield from _differing_bytes(f"beginning of buffer {name}", ours[:SAMPLE_BYTES], sample)
    digests = (np.frombuffer(x[SAMPLE_BYTES:], np.uint64) for x in (abridge(ours.tobytes()), theirs))
    wrong = np.flatnonzero(np.not_equal(*digests))
    if wrong.size:
        yield (
            f"buffer {name}: {wrong.size} of {-(-ours.size // PIECE_BYTES)} pieces of {PIECE_BYTES} bytes differ, the "
            f"first at {int(wrong[0]) * PIECE_BYTES}"
        )


def agrees(single: Case, ours: Array, theirs: Array) -> Array:
    """Bit for bit, but for NaN's payload, one case of `.ftz`, and what an approximation promises."""
    same: Array = ours == theirs
    kind = {4: np.float32, 8: np.float64}.get(ours.dtype.itemsize)
    promise = approximation(single.text)
    if promise is not None:
        first = np.broadcast_arrays(*single.operands)[0].reshape(-1)
        same |= promise.kept(first, ours, theirs, ".ftz" in single.text)
    elif kind is not None and f".f{8 * ours.dtype.itemsize}" in single.text and not _has_one_nan(single.text):
        a, b = ours.view(kind), theirs.view(kind)
        same |= np.isnan(a) & np.isnan(b)
    if ".ftz" in single.text and "approx" not in single.text:
        same |= _flushed_early(single.text, ours, theirs)
    return same


def _flushed_early(text: str, ours: Array, theirs: Array) -> Array:
    """Where results differ only because hardware flushes values that round up to the smallest normal number."""
    if ours.dtype == np.uint32 and ".f16x2" in text:
        low, high = (_flushed_early(".f16", *(x.view(np.uint16)[half::2] for x in (ours, theirs))) for half in (0, 1))
        same = [x.view(np.uint16).reshape(-1, 2) for x in (ours, theirs)]
        both: Array = (low | (same[0][:, 0] == same[1][:, 0])) & (high | (same[0][:, 1] == same[1][:, 1]))
        return both
    smallest = {"u4": 0x00800000, "u2": 0x0400}.get(ours.dtype.str[1:])
    if smallest is None:
        return np.zeros(ours.shape, np.bool_)
    sign = ours.dtype.type(1 << (8 * ours.dtype.itemsize - 1))
    found: Array = ((ours & ~sign) == smallest) & (theirs == (ours & sign))
    return found


def _has_one_nan(text: str) -> bool:
    """Forms whose NaN has one pattern on the hardware, which the emulator has to give."""
    forms = [set(form.split(".")) for form, _ in instructions(text)]
    return any("tf32" in words or ("f32" in words and words & {"min", "max"}) for words in forms)
