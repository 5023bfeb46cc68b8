"""PTX text -> functions -> one entry with every call inlined -> basic blocks in the order in which a warp visits them."""
