"""Compiles LLVM IR to object files and loads them, using a disk cache and worker processes."""
