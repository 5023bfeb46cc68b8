"""Models the rounding of floating-point numbers and the order of sums, from which error budgets are derived."""
