"""Blackwell's tensor memory, and the operations of its tensor cores (PTX ISA 9.7.16)."""
