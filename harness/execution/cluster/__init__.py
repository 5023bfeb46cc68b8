"""Distributes work with Dask's `distributed`, which no other package of the harness imports."""
