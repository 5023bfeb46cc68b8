"""Counts of a launch, as plain data, and what they sum to: bytes, instructions, costs of source lines."""
