"""Wrong answers of attention: trivial ones, and those of known mistakes."""
