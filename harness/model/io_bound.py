"""Represents a theoretical lower bound on the bytes that an operation moves, without its constant factor."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class IoBound:
    """A bound of the form Omega(expression), with an unknown constant factor."""

    on_chip_bytes: int
    """Bytes of registers and shared memory that a thread block can use in one pass over the data."""
    on_chip_elements: int
    """M: number of elements of the problem's dtype in `on_chip_bytes`."""
    expression_bytes: float
    """min(N_q N_k d / sqrt(M), N_q N_k d^2 / M) elements for each query head, in bytes. N^2 of the paper is N_q N_k."""
    large_memory: bool
    """Whether M >= d^2. The second term is then the smaller one, and FlashAttention's order of loops is optimal."""
    applies: bool
    """Whether M < N d for the longer of the two lengths. Otherwise K and V of a head fit on chip, and the compulsory
    bytes are the bound."""
