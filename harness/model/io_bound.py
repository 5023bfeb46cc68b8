"""How few bytes an operation can move at all: what a theorem says, its constant left out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class IoBound:
    """The expression inside of Omega, its constant left out."""

    on_chip_bytes: int
    """Registers and shared memory of a thread block: what one walk over the data has at hand."""
    on_chip_elements: int
    """M: how many elements of the problem's dtype that holds."""
    expression_bytes: float
    """min(N_q N_k d / sqrt(M), N_q N_k d^2 / M) elements for each query head, in bytes. N^2 reads N_q N_k here."""
    large_memory: bool
    """M >= d^2: the second term is the smaller one, and FlashAttention's order is the best there is."""
    applies: bool
    """M < N d, for the longer of the two lengths; beyond that K and V of a head fit on chip, and compulsory is all."""
