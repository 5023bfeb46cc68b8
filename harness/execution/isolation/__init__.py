"""Runs the code of variants in separate processes, so that it cannot affect the process that judges it."""
