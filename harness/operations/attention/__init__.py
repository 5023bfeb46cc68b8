"""Attention: its problem, masks, inputs, oracle, budget, properties, strategies and cost."""
