"""`tune`: finds the best of the tile sizes that a variant declares."""
