"""Restricts a process: its memory is closed to other processes, and it drops capabilities.

Linux only: prctl(2), capabilities(7). Opening /proc/PID/mem, process_vm_writev(2), ptrace(2), pidfd_getfd(2) and the
links of /proc/PID/fd all need ptrace access (ptrace(2), "Ptrace access mode checking"). A process of the same user has
it, unless the target is not dumpable or has capabilities that the process lacks; CAP_SYS_PTRACE overrides both.
"""

from __future__ import annotations

import ctypes
import functools

_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 4, 24, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITY_VERSION_3 = 0x20080522
_FILE_CAPABILITIES = 0b11111
"""CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER, CAP_FSETID: without them root cannot read a plugin in
another user's folder."""
_CAPABILITIES = 64


def protect_memory() -> None:
    """Deny other processes of this user access to this one's memory and descriptors, until it executes a program.

    Core dumps are disabled as well, and debuggers and profilers that attach (gdb, py-spy) need root.
    """
    _libc().prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def drop_privileges() -> None:
    """Permanently drop all capabilities except those for files, for this thread and all that it starts from now on.

    Programs that it executes gain none either, not even set-user-ID ones. For users other than root, only the latter
    matters.
    """
    libc = _libc()
    for capability in range(_CAPABILITIES):
        if not _FILE_CAPABILITIES >> capability & 1:
            libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable: the lower 32 capabilities, then the upper ones
    if libc.capget(header, sets) == 0:
        kept = [word & _FILE_CAPABILITIES for word in sets[:2]]
        libc.capset(header, (ctypes.c_uint32 * 6)(*kept, 0, 0, 0, 0))


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    return libc
