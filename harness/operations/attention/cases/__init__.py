"""Cases of attention for the fuzzer: axes, builds, Hypothesis strategies, simplification."""
