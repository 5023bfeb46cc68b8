"""Kernels of other libraries that `bench` times beside the variants."""
