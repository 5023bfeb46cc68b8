"""How floating-point numbers round and sums are added, which error budgets are derived from."""
