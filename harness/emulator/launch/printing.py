"""Prints the text of `printf` in kernels, and reads the texts of a failed `assert`."""

from __future__ import annotations

import ctypes
import re
import sys

import numpy as np

from harness.emulator.abi import layout as at
from harness.emulator.abi.fault_record import set_fault
from harness.emulator.launch.worker import Worker
from harness.emulator.memory.translation import host_address

_CONVERSION = re.compile(
    rb"%(?P<flags>[-+ #0]*)(?P<width>\*|\d+)?(?:\.(?P<precision>\*|\d*))?(?P<length>hh|h|ll|l|j|z|t|L)?"
    rb"(?P<kind>[diouxXfFeEgGaAcspn%])"
)
_LONGEST_TEXT = 1 << 16
_MOST_WIDTH = 4096
"""Longest text of a format or string, and widest field."""
_KEPT_CHARACTERS = 1 << 20
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int64)
_LIBC = ctypes.CDLL(None)


class AddressError(Exception):
    """A text or an argument of `printf` is not in memory."""

    def __init__(self, address: int) -> None:
        super().__init__(f"{address:#x}")
        self.address = address


class PrintedText:
    """What the kernels of a launch print."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._length = 0

    def add(self, text: str) -> None:
        """Append text."""
        self._parts.append(text)
        self._length += len(text)
        if self._length > _KEPT_CHARACTERS:
            self.flush()

    def flush(self) -> None:
        """Write the text to standard output."""
        if self._parts:
            sys.stdout.write("".join(self._parts))
            sys.stdout.flush()
        self._parts, self._length = [], 0


class Printer:
    """Prints for one worker: the runtime calls it with the warp's lanes, see `runtime/system_calls.py`."""

    def __init__(self, worker: Worker, text: PrintedText) -> None:
        self._worker, self._text = worker, text
        # ctypes frees the callback when nothing references it.
        self._callback = _CALLBACK(self._print)
        worker.set("PRINTER", ctypes.cast(self._callback, ctypes.c_void_p).value or 0)

    def _print(self, context: int) -> None:
        worker = self._worker
        warp, mask = worker.get("CALL_WARP"), worker.get("CALL_MASK")
        for lane in range(at.LANES):
            if not mask >> lane & 1:
                continue
            text, arguments = (_word(warp + place + 8 * lane) for place in (at.ADDRESSES, at.DATA))
            try:
                printed, count = formatted(worker, lane, text, arguments)
            except AddressError as error:
                set_fault(context, at.FAULT["bad text"], worker.get("CALL_SITE"), lane, error.address, 0)
                return
            self._text.add(printed)
            ctypes.c_int32.from_address(warp + at.DATA_2 + 4 * lane).value = count


def _word(place: int) -> int:
    return ctypes.c_int64.from_address(place).value


def read(worker: Worker, lane: int, address: int, size_bytes: int) -> bytes:
    """Bytes at an address of a lane. Raises `AddressError`."""
    host = host_address(worker.context.ctypes.data, lane, address, size_bytes)
    if not host:
        raise AddressError(address)
    return ctypes.string_at(host, size_bytes)


def text_at(worker: Worker, lane: int, address: int) -> bytes:
    """The bytes up to a zero. Raises `AddressError`."""
    found = bytearray()
    while len(found) < _LONGEST_TEXT:
        byte = read(worker, lane, address + len(found), 1)
        if byte == b"\0":
            break
        found += byte
    return bytes(found)


def formatted(worker: Worker, lane: int, text: int, arguments: int) -> tuple[str, int]:
    """The text that `printf` prints, and the number of its arguments. Raises `AddressError`.

    Arguments are consecutive in memory, each aligned to its size. Each conversion is that of the C library.
    """
    place, count = arguments, 0

    def take(size_bytes: int) -> bytes:
        nonlocal place, count
        place = -(-place // size_bytes) * size_bytes
        value = read(worker, lane, place, size_bytes)
        place, count = place + size_bytes, count + 1
        return value

    def convert(match: re.Match[bytes]) -> bytes:
        kind = match["kind"]
        if kind == b"%":
            return b"%"
        width, precision = match["width"] or b"", match["precision"]
        if width == b"*":
            width = b"%d" % max(-_MOST_WIDTH, min(_MOST_WIDTH, int.from_bytes(take(4), "little", signed=True)))
        if precision == b"*":
            precision = b"%d" % max(0, min(_MOST_WIDTH, int.from_bytes(take(4), "little", signed=True)))
        head = b"%" + match["flags"] + width + (b"" if precision is None else b"." + precision)
        if kind in b"fFeEgGaA":
            return _convert(head + kind, ctypes.c_double(np.frombuffer(take(8), np.float64)[0]))
        if kind == b"s":
            address = int.from_bytes(take(8), "little")
            return _convert(head + b"s", ctypes.c_char_p(text_at(worker, lane, address) if address else b"(null)"))
        if kind == b"p":
            return _convert(head + b"p", ctypes.c_void_p(int.from_bytes(take(8), "little")))
        if kind == b"n":
            take(8)
            return b""
        if kind == b"c":
            return _convert(head + b"c", ctypes.c_int(take(4)[0]))
        length = match["length"] or b""
        wide = length in (b"l", b"ll", b"j", b"z", b"t")
        value = int.from_bytes(take(8 if wide else 4), "little", signed=kind in b"di")
        return _convert(head + (b"ll" if wide else length) + kind, ctypes.c_longlong(value))

    whole = _CONVERSION.sub(convert, text_at(worker, lane, text))
    return whole.decode("utf-8", "backslashreplace"), count


def _convert(conversion: bytes, value: object) -> bytes:
    """One conversion by the C library."""
    size = _LIBC.snprintf(None, 0, conversion, value)
    buffer = ctypes.create_string_buffer(size + 1)
    _LIBC.snprintf(buffer, size + 1, conversion, value)
    return buffer.raw[:size]


def assertion_of(worker: Worker) -> str:
    """The failed assertion of a worker's fault, as CUDA prints it: file, line, function and condition."""
    lane = worker.get("FAULT_LANE")
    number = worker.get("FIRST_WARP") + worker.get("FAULT_WARP")
    warp = worker.warps.ctypes.data + number * worker.warp_bytes
    texts = []
    for place in (at.ASSERTION_FILE, at.ASSERTION_NAME, at.ASSERTION_MESSAGE):
        try:
            texts.append(text_at(worker, lane, _word(warp + place + 8 * lane)).decode("utf-8", "backslashreplace"))
        except AddressError:
            texts.append("?")
    line = ctypes.c_uint32.from_address(warp + at.ASSERTION_LINE + 4 * lane).value
    return f"{texts[0]}:{line}: {texts[1]}: Assertion `{texts[2]}` failed"
