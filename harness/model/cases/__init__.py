"""Cases that the fuzzer examines, and what they are drawn from: builds, axes, regimes and properties."""
