"""`bench`: honest timing on a GPU."""
