"""Multi-head latent attention at decode time, absorbed: all query heads read one compressed row per key, in pages."""
