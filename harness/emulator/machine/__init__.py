"""Native code, memory, and the order in which blocks and warps run."""
