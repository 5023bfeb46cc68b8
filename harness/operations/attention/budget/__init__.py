"""The error budget of attention, derived from the inputs and the declared numerics."""
