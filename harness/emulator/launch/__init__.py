"""Runs one launch: sets up memory, distributes blocks over cores, collects counts, faults, findings, cache traffic."""
