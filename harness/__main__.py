"""`python -m harness`."""

from __future__ import annotations

import sys

try:
    from harness.cli import main

    sys.exit(main())
except KeyboardInterrupt:  # before the command line itself can see to it
    sys.exit(130)
