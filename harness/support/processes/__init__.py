"""Child processes: their trees, their end, their privileges, and interrupts."""
