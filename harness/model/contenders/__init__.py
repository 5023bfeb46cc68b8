"""Runs kernels of other libraries, which `bench` times for comparison with the variants."""
