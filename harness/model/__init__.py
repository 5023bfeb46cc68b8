"""Defines variants, plans, operations and findings as plain data. Nothing in this package needs a GPU or a compiler."""
