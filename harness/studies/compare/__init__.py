"""`compare`: checks, counts and ranks all variants on one problem."""
