"""`new`: a variant that runs and passes, ready to be edited."""
