"""Program that runs the scheduler or a worker of a local cluster, each in its own session.

The process ends, with all that it has started, as soon as its parent closes the other end of the pipe `LIFELINE` or
ends. The scheduler writes its address to `FILE`.

  python -m harness.execution.cluster.cluster_process scheduler LIFELINE FILE
  python -m harness.execution.cluster.cluster_process worker LIFELINE FILE NAME FOLDER
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
import threading

import dask
from distributed import Scheduler, Worker

from harness.execution.cluster.cluster_client import silence_dask
from harness.support.processes.privileges import protect_memory

HOST = "127.0.0.1"
HEARTBEAT = "500 ms"


def main(role: str, lifeline: int, *where: str) -> None:
    """Run the scheduler or the worker until its parent ends."""
    protect_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()
    silence_dask()
    dask.config.set(
        {
            "distributed.admin.tick.interval": "1 s",
            "distributed.worker.profile.enabled": False,
            # A worker stores no results, so Dask does not need to monitor its memory.
            "distributed.worker.memory.target": False,
            "distributed.worker.memory.spill": False,
            "distributed.worker.memory.pause": False,
            "distributed.worker.memory.terminate": False,
        }
    )
    asyncio.run(_scheduler(*where) if role == "scheduler" else _worker(*where))


def _end_with_parent(lifeline: int) -> None:
    os.read(lifeline, 1)  # nothing is written; returns when the other end is closed
    os.killpg(0, signal.SIGKILL)


async def _scheduler(file: str) -> None:
    async with Scheduler(
        host=HOST, port=0, scheduler_file=file, dashboard=False, dashboard_address=f"{HOST}:0"
    ) as scheduler:
        await scheduler.finished()


async def _worker(file: str, name: str, folder: str) -> None:
    async with Worker(
        scheduler_file=file,  # waits until the file exists
        nthreads=1,
        name=name,
        host=HOST,
        dashboard=False,
        dashboard_address=f"{HOST}:0",
        memory_limit=0,
        heartbeat_interval=HEARTBEAT,
        local_directory=folder,
    ) as worker:
        await worker.finished()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
