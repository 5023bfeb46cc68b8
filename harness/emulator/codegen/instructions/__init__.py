"""Emitters of instructions, one module per family of the PTX ISA."""
