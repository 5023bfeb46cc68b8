"""`history`: how bytes, error and time of variants went, over what was kept."""
