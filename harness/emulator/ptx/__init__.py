"""PTX text -> functions -> one entry with its calls inlined -> basic blocks, in the order in which a warp visits them."""
