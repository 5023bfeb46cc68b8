"""Judges an answer: errors against their budgets, declared numerics, power of the question, the verdict."""
