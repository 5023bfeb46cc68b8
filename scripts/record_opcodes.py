#!/usr/bin/env python3
"""Record what a GPU answers to every opcode form that the emulator implements, for the tests to hold the emulator to.

Needs a GPU. Run from the repository's root:

    python scripts/record_opcodes.py tests/hardware/opcodes_h200.zip

It runs tests/emulator/test_opcodes_*.py: each kernel runs on the emulator, as always, and then on the GPU with the same
operands. What the two disagree on by more than they may is printed; the record has the GPU's answer either way. The
tests are spread over processes, for most of the time is the emulator's.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zlib
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
EMULATOR_TESTS = ROOT / "tests" / "emulator"
sys.path.insert(0, str(ROOT))

from harness.compilers.tensor_maps import encode  # noqa: E402 - the repository need not be installed
from harness.model.tensor_map import TensorMap  # noqa: E402
from harness.support.errors import UsageError  # noqa: E402
from harness.support.file_replacement import replace_files, require_writable  # noqa: E402
from scripts.recording.environment import environment  # noqa: E402
from scripts.recording.opcode_kernel import LISTENERS, CaseModule, Launched  # noqa: E402
from scripts.recording.opcode_record import (  # noqa: E402
    Answer,
    OpcodeRecord,
    answer_to,
    differences,
    is_recorded,
    key_of,
    load,
    opcodes_of,
    save,
)

STOPPED = 42
"""The exit status of a process whose GPU context is lost."""


class Recorder:
    """A pytest plugin: runs on the GPU what tests run on the emulator: a share of them, without those that are done."""

    def __init__(self, share: int, shares: int, done: list[str]) -> None:
        self.share, self.shares, self.done = share, shares, done
        self.answers: dict[str, list[Answer]] = defaultdict(list)
        self.opcodes: set[str] = set()
        self.differences: list[str] = []
        self._key = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        done = set(self.done)
        items[:] = [
            i for i in items if zlib.crc32(i.nodeid.encode()) % self.shares == self.share and i.nodeid not in done
        ]

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._key = key_of(item.nodeid)
        self.done.append(item.nodeid)

    def launched(self, launched: Launched) -> None:
        if not is_recorded(self._key):
            return
        accepted, refused = without_refused(launched)
        after = self._run(accepted)
        answer = answer_to(launched, after, refused)
        self.answers[self._key].append(answer)
        self.opcodes |= opcodes_of(launched.text)
        self.differences += [f"{self._key}: {line}" for line in differences(self._key, launched, answer)]

    def _run(self, launched: Launched) -> dict[str, Any]:
        import cupy

        try:
            return run_on_gpu(launched)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            self.differences.append(f"{self._key}: the GPU stops ({error})")
            pytest.exit(str(error), returncode=STOPPED)


def without_refused(launched: Launched) -> tuple[Launched, tuple[int, ...]]:
    """Leave out the cases whose PTX this GPU's driver rejects; returns the rest, and the indices of those cases.

    Where a kernel is not made of cases, it is the driver's error that says so.
    """
    if launched.module is None or loads(launched.text):
        return launched, ()
    cases = launched.module.cases
    refused = tuple(index for index, single in enumerate(cases) if not loads(CaseModule([single]).text))
    # A case without instructions leaves zero and everything else in its place.
    kept = [replace(single, text="") if index in refused else single for index, single in enumerate(cases)]
    return replace(launched, text=CaseModule(kept).text), refused


def loads(text: str) -> bool:
    """Whether the driver takes this PTX."""
    import cupy

    try:
        cupy.cuda.function.Module().load(text.encode())
    except cupy.cuda.driver.CUDADriverError:
        return False
    return True


def run_on_gpu(launched: Launched) -> dict[str, Any]:
    """The kernel's buffers afterwards, as bytes. The driver compiles the PTX."""
    import cupy

    module = cupy.cuda.function.Module()
    module.load(launched.text.encode())
    kernel = module.get_function(launched.entry)
    buffers = {name: cupy.asarray(data) for name, data in launched.before.items()}
    scalars = [
        encode(value, buffers[value.buffer].data.ptr) if isinstance(value, TensorMap) else _number(value)
        for value in launched.scalars
    ]
    kernel(launched.grid, launched.block, (*buffers.values(), *scalars), launched.shared_bytes)
    cupy.cuda.runtime.deviceSynchronize()
    return {name: data.get() for name, data in buffers.items()}


def _number(word: bytes) -> Any:
    """A scalar as CuPy takes it."""
    return np.frombuffer(word, f"u{len(word)}" if len(word) in (1, 2, 4, 8) else f"V{len(word)}")[0]


def record_share(output: Path, share: int, shares: int, recorded: Path) -> None:
    """Record some of the tests in this process, but those whose names are in a file; add the names of what has run.

    Where the GPU stops at a kernel, it takes no other one of this process: the rest is left to another.
    """
    recorder = Recorder(share, shares, recorded.read_text().splitlines() if recorded.exists() else [])
    LISTENERS.append(recorder.launched)
    files = sorted(map(str, EMULATOR_TESTS.glob("test_opcodes_*.py")))

    class Named:
        def pytest_configure(self, config: pytest.Config) -> None:
            config.pluginmanager.register(recorder, "opcode-recorder")

    status = pytest.main(["-q", "--lane=exhaustive", "-p", "no:cacheprovider", *files], plugins=[Named()])
    if status not in (*pytest.ExitCode, STOPPED) or status in (
        pytest.ExitCode.INTERNAL_ERROR,
        pytest.ExitCode.USAGE_ERROR,
    ):
        sys.exit(f"the tests of opcodes did not run: {status!r}")
    record = OpcodeRecord(environment(), dict(recorder.answers), sorted(recorder.opcodes))
    replace_files({output: save(record), recorded: "\n".join(recorder.done).encode()})
    print("\n".join([*recorder.differences, f"{len(recorder.differences)} differences"]), flush=True)
    if status == STOPPED:
        os._exit(STOPPED)  # CuPy cannot clean up after that


def record_in_processes(folder: Path, share: int, shares: int) -> list[OpcodeRecord]:
    """One share's records: as many as it took processes. What they print goes to standard output in one piece."""
    records, printed, status = [], "", STOPPED
    while status == STOPPED:
        part = folder / f"{share}-{len(records)}.zip"
        command = [sys.executable, __file__, str(part), "--processes", str(shares), "--share", str(share)]
        command += ["--recorded", str(folder / f"{share}.txt")]
        done = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        status = done.returncode
        printed += f"process {share}\n{done.stdout}"
        if part.exists():
            records.append(load(part))
    print(printed, flush=True)
    if status:
        sys.exit(f"process {share} ended with status {status}")
    return records


def record_all(shares: int) -> OpcodeRecord:
    """Record all tests, in so many processes at once."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(shares) as pool:
        found = pool.map(lambda share: record_in_processes(Path(folder), share, shares), range(shares))
        records = [record for some in found for record in some]
    answers = {key: found for record in records for key, found in record.answers.items()}
    opcodes = {opcode for record in records for opcode in record.opcodes}
    return OpcodeRecord(records[0].environment, dict(sorted(answers.items())), sorted(opcodes))


def main() -> None:
    """Parse, record, write whole."""
    parser = argparse.ArgumentParser(description="Record a GPU's answers to every opcode form.")
    parser.add_argument("output", type=Path, help="where the record goes (zip)")
    parser.add_argument("--processes", type=int, default=min(12, os.cpu_count() or 1), help="that share the tests")
    parser.add_argument("--share", type=int, help="record this share of the tests alone, counted from 0")
    parser.add_argument("--recorded", type=Path, help="with --share: a file of names of tests that are done")
    arguments = parser.parse_args()
    output: Path = arguments.output
    try:
        require_writable(output)
    except UsageError as error:
        sys.exit(str(error))
    if arguments.share is not None:
        record_share(output, arguments.share, arguments.processes, arguments.recorded)
        return
    record = record_all(arguments.processes)
    replace_files({output: save(record)})
    launches = sum(map(len, record.answers.values()))
    print(f"{launches} kernels of {len(record.answers)} tests recorded in {output}, {output.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
