"""Records of bytes: a zip file of an index in JSON and of all bytes one after the other, packed."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def pack(index: dict[str, Any], parts: list[bytes]) -> bytes:
    """The file. `index` has to say how long each part is."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in (("index.json", json.dumps(index, indent=1).encode()), ("answers.bin", b"".join(parts))):
            # A ZipInfo has no date of today: the same answers make the same file.
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_LZMA)
    return packed.getvalue()


def unpack(path: Path) -> tuple[dict[str, Any], Reader]:
    """The index, and the parts in their order."""
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read("index.json")), Reader(archive.read("answers.bin"))


class Reader:
    """Hands out bytes in order."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._position = 0

    def take(self, sizes: dict[str, int]) -> Iterator[tuple[str, bytes]]:
        """The next parts, by name."""
        for name, size in sizes.items():
            self._position += size
            yield name, self._content[self._position - size : self._position]
