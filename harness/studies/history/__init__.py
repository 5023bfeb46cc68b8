"""`history`: changes of bytes, error and time of variants over stored results."""
