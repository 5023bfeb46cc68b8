"""Runs one plan and judges it: the protocol of executors, counts, reference questions, and the result of an attempt."""
