#!/usr/bin/env python3
"""Record what a GPU answers to every opcode form that the emulator implements, for the tests to hold the emulator to.

Needs a GPU. Run from the repository's root:

    python scripts/record_opcodes.py tests/hardware/opcodes_h200.zip

It runs tests/emulator/test_opcodes_*.py: each kernel runs on the emulator, as always, and then on the GPU with the same
operands. What the two disagree on by more than they may is printed; the record has the GPU's answer either way.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
EMULATOR_TESTS = ROOT / "tests" / "emulator"
sys.path.insert(0, str(ROOT))

from harness.support.errors import UsageError  # noqa: E402 - the repository need not be installed
from harness.support.file_replacement import replace_files, require_writable  # noqa: E402
from scripts.recording.environment import environment  # noqa: E402
from scripts.recording.opcode_kernel import LISTENERS, CaseModule, Launched  # noqa: E402
from scripts.recording.opcode_record import (  # noqa: E402
    Answer,
    OpcodeRecord,
    differences,
    is_recorded,
    key_of,
    opcodes_of,
    save,
)


class Recorder:
    """A pytest plugin: runs on the GPU what the tests run on the emulator."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Answer]] = defaultdict(list)
        self.opcodes: set[str] = set()
        self.differences: list[str] = []
        self._key = ""

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._key = key_of(item.nodeid)

    def launched(self, launched: Launched) -> None:
        if not is_recorded(self._key):
            return
        accepted, refused = without_refused(launched)
        after = run_on_gpu(accepted)
        changed = {name: data.tobytes() for name, data in after.items() if (data != launched.before[name]).any()}
        answer = Answer(launched.digest, changed, refused)
        self.answers[self._key].append(answer)
        self.opcodes |= opcodes_of(launched.text)
        self.differences += [f"{self._key}: {line}" for line in differences(self._key, launched, answer)]


def without_refused(launched: Launched) -> tuple[Launched, tuple[int, ...]]:
    """The same without the cases whose PTX this GPU's driver does not take, and which those are.

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
    scalars = [np.frombuffer(word, f"u{len(word)}" if len(word) in (1, 2, 4, 8) else f"V{len(word)}")[0]
               for word in launched.scalars]  # fmt: skip
    kernel(launched.grid, launched.block, (*buffers.values(), *scalars), launched.shared_bytes)
    cupy.cuda.runtime.deviceSynchronize()
    return {name: data.get() for name, data in buffers.items()}


def main() -> None:
    """Parse, record, write whole."""
    parser = argparse.ArgumentParser(description="Record a GPU's answers to every opcode form.")
    parser.add_argument("output", type=Path, help="where the record goes (zip)")
    output: Path = parser.parse_args().output
    try:
        require_writable(output)
    except UsageError as error:
        sys.exit(str(error))
    recorder = Recorder()
    LISTENERS.append(recorder.launched)
    files = sorted(map(str, EMULATOR_TESTS.glob("test_opcodes_*.py")))

    class Named:
        def pytest_configure(self, config: pytest.Config) -> None:
            config.pluginmanager.register(recorder, "opcode-recorder")

    status = pytest.main(["-q", "--lane=thorough", "-p", "no:cacheprovider", *files], plugins=[Named()])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        sys.exit(f"the tests of opcodes did not run: {status!r}")
    record = OpcodeRecord(environment(), dict(recorder.answers), sorted(recorder.opcodes))
    replace_files({output: save(record)})
    print("\n".join(recorder.differences))
    launches = sum(map(len, recorder.answers.values()))
    print(f"{launches} kernels of {len(recorder.answers)} tests recorded in {output}, ", end="")
    print(f"{output.stat().st_size:,} bytes; {len(recorder.differences)} differences")


if __name__ == "__main__":
    main()
