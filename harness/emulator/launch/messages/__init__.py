"""Faults of kernels, and findings of the sanitizer, in words."""
