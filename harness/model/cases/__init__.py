"""Defines the cases that the fuzzer runs, and the builds, axes, regimes and properties that they are drawn from."""
