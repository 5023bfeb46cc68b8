"""A sandbox for attention kernels: check them, count their bytes, time them, rank them."""
