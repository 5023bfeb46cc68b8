"""`why`: what the distance between two variants, or one and the roofline, is made of."""
