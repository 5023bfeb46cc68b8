"""Implements --workers: distributes work over processes of this machine, or over a Dask cluster."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from harness.model.discovery import MODULE, REPOSITORY_ROOT, Discovery
from harness.options.command import argument_type
from harness.options.standard_streams import complain
from harness.options.watch import kernel_sources_beside
from harness.support.errors import UsageError
from harness.support.numbers import shown, whole_number

if TYPE_CHECKING:
    from harness.execution.cluster.cluster_client import ClusterClient
    from harness.options.request import StudyRequest

MOST_WORKERS = 1024
"""Maximum number of processes on one machine."""
_ADDRESS = re.compile(r"(tcp|tls)://[^\s/]+:[0-9]+/?")


def parse_workers(text: str) -> int | str:
    """Parse a number of processes, or the address of a scheduler. Raises `UsageError`."""
    if _ADDRESS.fullmatch(text):
        return text.rstrip("/")
    try:
        number = whole_number(text)
    except ValueError:
        raise UsageError(
            f"{shown(text)} is neither a number of processes nor the address of a Dask scheduler, such as "
            "tcp://10.0.0.1:8786"
        ) from None
    if not 1 <= number <= MOST_WORKERS:
        raise UsageError(f"--workers is {number}; it has to be from 1 to {MOST_WORKERS}")
    return number


def add_workers(parser: argparse.ArgumentParser, what: str) -> None:
    """Add --workers. `what` describes the work that is distributed, in a few words."""
    parser.add_argument_group("workers").add_argument(
        "--workers",
        type=argument_type(parse_workers),
        metavar="N|ADDRESS",
        help=f"distribute {what} over N processes on this machine, or over the workers of the Dask scheduler at this "
        "address, such as tcp://10.0.0.1:8786 (default: use only this process)",
    )


@contextlib.contextmanager
def cluster_of(
    request: StudyRequest,
    found: Discovery,
    gpus: Sequence[str] = (),
    device_of: Callable[[], str | None] | None = None,
) -> Iterator[ClusterClient | None]:
    """Context with a client of the workers that --workers names; None without --workers.

    The workers have the files of plugins. `gpus` are GPUs of this machine, of which each local worker gets one.
    `device_of` is passed to `ClusterClient`. Raises `UsageError` if `distributed` is not installed.
    """
    if request.workers is None:
        yield None
        return
    require_distributed()
    if request.selection.own_variants:
        raise UsageError("workers load variants anew; write yours to a file, and name that with plugin=")
    from harness.execution.cluster.cluster_client import ClusterClient
    from harness.execution.cluster.shipping import receive, shipment

    with ClusterClient(request.workers, complain, gpus, device_of) as cluster:
        files = plugin_files(found)
        if files:
            cluster.broadcast_setup(receive, shipment(files))
        yield cluster


def are_elsewhere(workers: int | str | None) -> bool:
    """Whether the workers may be on other machines, which have their own GPUs."""
    return isinstance(workers, str)


def require_distributed() -> None:
    """Raise `UsageError` if Dask's `distributed` is not installed."""
    if importlib.util.find_spec("distributed") is None:
        raise UsageError("--workers needs Dask's distributed, which is not installed: pip install distributed")


def plugin_files(found: Discovery) -> list[str]:
    """Return the known files of plugins: their modules, the modules they import, and their kernels' sources."""
    if all(origin.kind == MODULE for origin in found.origins.values()):
        return []
    own = [path for path in found.files if not path.startswith(str(REPOSITORY_ROOT / "variants"))]
    return sorted({*own, *kernel_sources_beside(own)})
