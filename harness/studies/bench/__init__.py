"""`bench`: rigorous timing on a GPU."""
