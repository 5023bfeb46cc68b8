"""Measures a kernel's use of registers, spills and shared memory with `ptxas`. Needs no GPU."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import struct
import subprocess
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from harness.ptx.device_runtime import RUNTIME_FUNCTIONS
from harness.support.cache import default_cache
from harness.support.errors import CompileError

_TIMEOUT_SECONDS = 600.0
_ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_ELF_SECTION = struct.Struct("<IIQQQQIIQQ")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REMARK = re.compile(r"\(C75\d\d\) .*")


@dataclass(frozen=True)
class Resources:
    """Resource usage of one kernel, as `ptxas -v` reports it."""

    registers: int
    """32-bit registers per thread."""
    spill_store_bytes: int
    """Bytes per thread stored because registers ran out. They are not visible in PTX."""
    spill_load_bytes: int
    """Bytes per thread loaded back."""
    shared_bytes: int
    """Static shared memory per block."""
    stack_bytes: int
    """Stack bytes per thread, including called functions."""
    const_bytes: int
    """Constant memory in all banks that ptxas reports."""
    code_bytes: int | None = None
    """Size of the machine code; None if not measured."""
    remarks: tuple[str, ...] = ()
    """What ptxas reports for the module about Hopper's instructions: that it serializes `wgmma`, injects a wait for it,
    or ignores `setmaxnreg`. Each costs time."""


def resources(ptx: str, arch: str, entry: str, max_registers: int | None = None) -> Resources | None:
    """Return the resource usage of kernel `entry` of the module `ptx` on `arch`. None if no ptxas reads this PTX.

    `max_registers` is the limit that the user requested (`CompiledKernel.max_registers`). Raises `CompileError` with
    ptxas's own message if it rejects the PTX.
    """
    tool = find_ptxas()
    if tool is None:
        return None
    status = os.stat(tool)
    key = ("with remarks", str(status.st_size), str(status.st_mtime_ns), arch, entry, str(max_registers), ptx)

    def build() -> bytes:
        log, cubin = _run(tool, ptx, arch, max_registers)
        found = replace(_parse(log, entry), code_bytes=section_bytes(cubin, f".text.{entry}"))
        return json.dumps(asdict(found)).encode()

    try:
        fields = json.loads(default_cache().cached("ptxas", key, build))
        return Resources(**{**fields, "remarks": tuple(fields["remarks"])})
    except _TooOld:
        return None


class _TooOld(Exception):
    """Raised if the installed ptxas is older than the compiler that wrote the PTX."""


@functools.cache
def find_ptxas() -> Path | None:
    """Return the ptxas of the nvidia wheels (CUDA 12 or 13), or else of an installed toolkit; None if there is none."""
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec is not None else ():
        for folder in ("cuda_nvcc/bin", "cu13/bin"):
            path = Path(root, folder, "ptxas")
            if os.access(path, os.X_OK):
                return path
    try:
        from cuda import pathfinder

        found = pathfinder.find_nvidia_binary_utility("ptxas")
    except Exception:  # older versions of pathfinder do not find programs
        return None
    return None if found is None else Path(found)


def _run(tool: Path, ptx: str, arch: str, max_registers: int | None) -> tuple[str, bytes]:
    """Run ptxas. Returns its output and the cubin."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file, tempfile.NamedTemporaryFile(suffix=".cubin") as out:
        file.write(ptx)
        file.flush()
        limit = [] if max_registers is None else [f"-maxrregcount={max_registers}"]
        # A module that calls the device runtime is not complete before it is linked.
        part = ["-c"] if any(name in ptx for name in RUNTIME_FUNCTIONS) else []
        command = [str(tool), "-v", f"-arch={arch}", *limit, *part, file.name, "-o", out.name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompileError(f"ptxas ({tool}) did not run: {error}") from error
        log = done.stdout + done.stderr
        if "Unsupported .version" in log:
            raise _TooOld
        if done.returncode != 0:
            raise CompileError(f"ptxas rejects the PTX for {arch}:\n{log.replace(file.name, 'kernel.ptx').strip()}")
        return log, Path(out.name).read_bytes()


def _parse(log: str, entry: str) -> Resources:
    # Each kernel has one section: Compiling entry function, Function properties, frame and spills, Used ... registers.
    section = rf"Compiling entry function '{re.escape(entry)}'(.*?)Used (\d+) registers([^\n]*)"
    match = re.search(section, log, re.DOTALL)
    frame = _FRAME.search(match[1]) if match is not None else None
    if match is None or frame is None:
        raise CompileError(f"ptxas does not report on kernel {entry}; it says:\n{log.strip()}")

    def total(pattern: str) -> int | None:
        found = re.findall(pattern, match[3])
        return sum(map(int, found)) if found else None

    stack_bytes = total(r"(\d+) bytes cumulative stack size")
    return Resources(
        registers=int(match[2]),
        spill_store_bytes=int(frame[2]),
        spill_load_bytes=int(frame[3]),
        shared_bytes=total(r"(\d+) bytes smem") or 0,
        stack_bytes=int(frame[1]) if stack_bytes is None else stack_bytes,
        const_bytes=total(r"(\d+) bytes cmem\[\d+\]") or 0,
        remarks=tuple(_REMARK.findall(log)),
    )


def section_bytes(cubin: bytes, name: str) -> int | None:
    """Return the size of a section of a cubin, a 64-bit ELF file; None if there is no such section.

    The machine code of a kernel is in `.text.kernel`.
    """
    header = _ELF_HEADER.unpack_from(cubin)
    offset, count, names = header[6], header[12], header[13]
    sections = [_ELF_SECTION.unpack_from(cubin, offset + _ELF_SECTION.size * index) for index in range(count)]
    first_name = sections[names][4]
    for section in sections:
        start = first_name + section[0]
        if cubin[start : cubin.index(b"\0", start)] == name.encode():
            return int(section[5])
    return None
