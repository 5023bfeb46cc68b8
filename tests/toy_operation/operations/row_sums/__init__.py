"""A toy operation: the sums of the rows of a matrix."""
