"""The emulated GPU as an object, and the CUDA driver on it."""
