#!/usr/bin/env python3
"""A stand-in for `compute-sanitizer` on a machine without a GPU: writes the logs that an H200's tools wrote.

It plays the program's part as well, for which it makes the plans. FAKE_SANITIZER says what it should do instead.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from harness.execution.planning.variant_calls import make_plan
from harness.model.discovery import discover
from harness.operations.attention.problem import Problem

LOGS = {
    "memcheck": """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at stray+0xe0 in stray.cu:17
=========     by thread (5,0,0) in block (2,0,0)
=========     Access to 0x7f533ca04000 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f533ca03000 of size 4,096 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: main in /src/main.c:5 [0x1]
=========
========= Invalid __global__ write of size 4 bytes
=========     at stray+0xe0 in stray.cu:17
=========     by thread (6,0,0) in block (2,0,0)
=========
========= ERROR SUMMARY: 2 errors
""",
    "racecheck": """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at racy+0xe0 in racy.cu:5
=========     and Read access at racy+0xf0 in racy.cu:6 [512 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
""",
    "initcheck": """========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at planted::racy_numba[abi:v1,cw51cXTLSU](Array<float, (int)4, C>)+0x210 in planted.py:35
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f7a08a04000
=========
========= Host API memory access error at host access to 0x7f2d0ea03000 of size 4,096 bytes
=========     Uninitialized access to 0x7f2d0ea03200 on access by cudaMemcpy source
=========
========= ERROR SUMMARY: 2 errors
""",
    "synccheck": "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n",
}
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"


def main() -> int:
    arguments = sys.argv[1:]
    options = dict(itertools.pairwise(arguments))
    tool, log = options["--tool"], Path(options["--log-file"])
    request, reply = map(Path, arguments[-2:])
    mode = os.environ.get("FAKE_SANITIZER")
    if mode == "hangs":
        time.sleep(60)
    if mode == "no gpu":
        log.write_text("========= COMPUTE-SANITIZER\n========= Target application returned an error\n")
        reply.write_text(json.dumps({"runs": [], "error": "no usable GPU: none\nat all"}))
        return 1
    asked = json.loads(request.read_text())
    assert asked["poison"] is False
    registry = discover([Path(path) for path in asked["plugins"]]).registry
    for run in asked["runs"]:
        make_plan(registry.get(run["variant"]), Problem.from_fields(run["problem"]))
    log.write_text(CLEAN if mode == "clean" else LOGS[tool])
    if mode != "crash":
        reply.write_text(json.dumps({"runs": [], "error": None}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
