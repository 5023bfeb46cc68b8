"""PTX text -> functions -> one entry with its calls inlined -> basic blocks, in the order that warps visit them."""
