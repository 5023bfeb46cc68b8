"""A warp's requests -> bytes, sectors and banks, and what caches leave of them. Compiled by Numba."""
