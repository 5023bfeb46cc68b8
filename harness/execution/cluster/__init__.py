"""Distributes work over processes and machines with Dask's `distributed`.

No other package of the harness imports it.
"""
