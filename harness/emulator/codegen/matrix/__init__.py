"""Emitters of matrix products, and the arithmetic and fragment layouts of tensor cores."""
