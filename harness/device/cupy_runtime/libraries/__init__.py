"""Modules that stand for CuPy's interfaces to libraries of machine code. They compute with NumPy.

Each has a function `functions(memory)`, which returns contents of CuPy's module by name.
"""
