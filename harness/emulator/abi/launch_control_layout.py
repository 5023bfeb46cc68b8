"""Memory layout of what `clusterlaunchcontrol` uses, shared by Python, the runtime and generated code."""

from __future__ import annotations

# The queues of clusters that have not started: a row for each cluster that the launch runs --------------------------
NEXT, REFUSES = 0, 8
"""The number of the cluster behind this one in its queue, -1 if there is none; whether a request for this cluster is
refused."""
ROW_BYTES = 16

# A response ----------------------------------------------------------------------------------------------------------
RESPONSE_BYTES = 16
"""Bits 0 to 63: x, y and z of the cluster's first block, with 32, 16 and 16 bits; all set if the request was refused.
Bits 64 to 127: `MAGIC`, and in the lowest bit whether a cluster was cancelled. On a GPU the layout is not public."""
Y_AT, Z_AT = 32, 48
COORDINATE_BITS = 16
MAGIC = 0x636C632D72657370
"""Neither zeros nor the NaN pattern of fresh memory has this value."""
