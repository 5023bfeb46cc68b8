"""Attention over pages: a pool of keys and values, a table that says whose they are, and a length per sequence."""
