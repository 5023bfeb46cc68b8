"""Work spread over processes and machines, on Dask's `distributed`; nothing else of the harness imports that."""
