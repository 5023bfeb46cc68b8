"""Which cases a campaign examines, in which order."""
