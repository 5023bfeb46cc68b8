"""Transfers a client's files to workers on other machines: plugins, the modules they import and their kernels' sources.

If a worker has the same files at the same paths, it uses those. Otherwise it writes all of them below a temporary
folder, in the same folder structure as on the client, so that relative paths between them stay valid.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.execution.cluster.worker_side import state
from harness.execution.isolation.variants import isolate
from harness.model.discovery import PLUGIN, Origin, load_variant
from harness.model.variant import Variant
from harness.support.errors import UsageError

LARGEST_BYTES = 64 * 2**20
"""Maximum size of all files together. Plugins are text files."""
_received: dict[str, Path] = {}


@dataclass(frozen=True)
class Shipment:
    """Contents of files, by their absolute paths on the client."""

    files: tuple[tuple[str, bytes], ...]


def shipment(paths: Iterable[str]) -> Shipment:
    """Read those of the files that are readable. Raises `UsageError` if they are too large."""
    found: dict[str, bytes] = {}
    for path in paths:
        try:
            found[str(Path(path).resolve())] = Path(path).read_bytes()
        except OSError:
            continue
        if sum(map(len, found.values())) > LARGEST_BYTES:
            raise UsageError(
                f"the plugins' files are larger than {LARGEST_BYTES >> 20} MiB together, with {path}; move them into a "
                "folder without other files"
            )
    return Shipment(tuple(sorted(found.items())))


def receive(sent: Shipment) -> None:
    """Make the files available on this worker: write them to disk unless they are present."""
    if all(_is_here(path, content) for path, content in sent.files):
        _received.clear()
        return
    digest = hashlib.sha256(repr(sent.files).encode()).hexdigest()[:16]
    folder = state(f"shipment:{digest}", lambda: _Written(sent)).root
    _received.clear()
    _received.update({path: _below(folder, path) for path, _ in sent.files})


class _Written:
    """The files of a shipment in a temporary folder, which is deleted with this object."""

    def __init__(self, sent: Shipment) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="attention-sandbox-shipment-")
        self.root = Path(self._folder.name)
        for path, content in sent.files:
            target = _below(self.root, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)

    def __exit__(self, *exception: object) -> None:
        _received.clear()
        self._folder.cleanup()


def _is_here(path: str, content: bytes) -> bool:
    try:
        return Path(path).read_bytes() == content
    except OSError:
        return False


def _below(folder: Path, path: str) -> Path:
    return folder / Path(path).relative_to("/")


@dataclass(frozen=True)
class OriginLoad:
    """Creates a variant of an origin (`Load`), from a received file if the origin is one."""

    origin: Origin
    name: str

    def __call__(self) -> Variant:
        """Create the variant. Raises what `Origin.load` does."""
        return load_variant(self.origin, self.name)

    def here(self) -> OriginLoad:
        """Return a copy with the path of the received file.

        A process that this worker starts does not have the table of received files.
        """
        if self.origin.kind != PLUGIN:
            return self
        path = Path(self.origin.name)
        mapped = _received.get(str(path)) or _received.get(str(path / "__init__.py"))
        if mapped is None:
            return self
        if path.suffix != ".py":
            mapped = mapped.parent
        return OriginLoad(Origin(PLUGIN, str(mapped)), self.name)


def load_of(origin: Origin, name: str) -> OriginLoad:
    """Return what creates this variant on a worker. The path of a plugin file is made absolute."""
    if origin.kind == PLUGIN:
        origin = Origin(PLUGIN, str(Path(origin.name).resolve()))
    return OriginLoad(origin, name)


def variant_here(token: str, load: OriginLoad) -> Variant:
    """Return the isolated variant on this worker, one object per `ClusterClient.token`. Raises `SandboxError`."""
    kept: dict[OriginLoad, Variant] = state(f"variants:{token}", dict)
    here = load.here()
    if here not in kept:
        kept[here] = isolate(here)
    return kept[here]


def load_here(load: Callable[[], Variant]) -> Callable[[], Variant]:
    """Replace the client's paths in `load` by those of the received files on this worker."""
    return load.here() if isinstance(load, OriginLoad) else load
