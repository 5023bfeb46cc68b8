"""The variants: a folder per operation, in it a folder or module per algorithm. `_` begins what variants share."""
