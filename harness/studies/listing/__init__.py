"""`list`: the registered variants."""
