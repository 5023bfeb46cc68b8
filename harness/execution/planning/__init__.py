"""From a variant to a compiled plan: its own functions, tile sizes, compilation ahead of a run."""
