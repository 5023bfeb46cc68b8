"""Writes files atomically: next to their final place first, then renamed."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from harness.support.errors import UsageError


def require_writable(path: Path) -> None:
    """Raise `UsageError` now if `path` cannot be written later, before any work is done. Leaves no trace."""
    try:
        target = _target(path)
        is_folder = target.is_dir() or not target.stat()
    except (FileNotFoundError, NotADirectoryError):
        is_folder = False
    except (OSError, ValueError) as error:  # a name that is too long, or has a NUL
        raise UsageError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from error
    if is_folder:
        raise UsageError(f"cannot write {path}: it is a folder")
    if target.is_fifo():
        # Opening it blocks until somebody reads, and readers see the end of file when the first writer closes it.
        raise UsageError(f"cannot write {path}: it is a named pipe; name a file")
    if not target.parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {target.parent}")
    if target.exists() and not os.access(target, os.W_OK):
        # A rename would replace a write-protected file without asking.
        raise UsageError(f"cannot write {path}: permission denied")
    if _is_special(target):
        return
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    os.close(handle)
    os.unlink(name)


def replace_files(contents: Mapping[Path, bytes]) -> None:
    """Write all files or, if one cannot be written, none. Raises `UsageError`."""
    written: list[tuple[str, Path]] = []
    try:
        for path, content in contents.items():
            target = _target(path)
            try:
                if _is_special(target):
                    target.write_bytes(content)
                else:
                    written.append((_write_beside(target, content), target))
            except OSError as error:
                raise UsageError(f"cannot write {path}: {error.strerror}") from error
        while written:
            name, target = written[-1]
            try:
                os.replace(name, target)
            except OSError as error:
                raise UsageError(f"cannot write {target}: {error.strerror}") from error
            written.pop()
    finally:
        for name, _ in written:
            os.unlink(name)


def _write_beside(target: Path, content: bytes) -> str:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(name, _mode_for(target))
    except BaseException:
        os.unlink(name)
        raise
    return name


def _mode_for(target: Path) -> int:
    """The permissions of the file to be replaced, or those of a new file."""
    if target.exists():
        return stat.S_IMODE(target.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _target(path: Path) -> Path:
    """The target of `path` if it is a symbolic link, so that the link is preserved; else `path`."""
    return Path(os.path.realpath(path))


def _is_special(target: Path) -> bool:
    """Whether the path is a device or a pipe, such as /dev/stdout, which cannot be replaced by renaming."""
    return target.exists() and not target.is_file()


def path_to_show(path: Path) -> str:
    """The path of a written file for a message: relative only if the file is in the current folder."""
    absolute = path.resolve() if ".." in path.parts else path.absolute()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(absolute)
