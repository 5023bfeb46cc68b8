"""What generated code takes from the host's CPU: which of two equivalent forms is faster there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cpu:
    """A CPU as LLVM describes it."""

    name: str = ""
    features: frozenset[str] = frozenset()

    @property
    def compares_fast(self) -> bool:
        """Whether `vpconflictd` takes a few cycles, as on AMD's; on Intel's, as long as sorting."""
        return self._is_amd and "avx512cd" in self.features

    @property
    def multiplies_quotients(self) -> bool:
        """Whether two to four multiplications, fused with additions, take less time than a division."""
        return not self.features.isdisjoint(("fma", "avx512f", "neon"))

    @property
    def multiplies_roots(self) -> bool:
        """Whether a square root takes longer than its approximation and twelve multiplications, as on Intel's."""
        return not self._is_amd and "avx512f" in self.features

    @property
    def _is_amd(self) -> bool:
        return self.name.startswith("znver")


ANY_CPU = Cpu()
"""A CPU without preferences, for code that many instructions share or that is not optimized."""
