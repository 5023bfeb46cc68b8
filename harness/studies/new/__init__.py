"""`new`: writes a variant that runs and passes, as a starting point."""
