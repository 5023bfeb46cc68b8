"""Softmax over the rows of a matrix: the second operation."""
