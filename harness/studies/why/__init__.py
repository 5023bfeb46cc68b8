"""`why`: explains the difference in time between two variants, or between one and the roofline."""
