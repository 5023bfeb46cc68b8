"""Compiles functions under `triton.jit` to PTX. Importing this package does not import Triton."""
