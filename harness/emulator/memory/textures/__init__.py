"""Textures and surfaces: finds, samples and counts the texels that kernels access."""
