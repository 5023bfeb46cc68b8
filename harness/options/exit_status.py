"""Exit statuses of every command. The last two are a shell's for SIGINT and SIGPIPE."""

from __future__ import annotations

PASSED, FAILED, WRONG_CALL, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141
