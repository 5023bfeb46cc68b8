"""The local store of results: rows for later reference, and finished units of work that need not run again."""
