"""LLVM functions that kernels call, and the compiler from Python to LLVM IR that makes most of them."""
