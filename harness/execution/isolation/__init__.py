"""A variant's code runs in processes of its own, and never in the one that judges it."""
