"""What is emitted only in kernels that are compiled for the sanitizer or for counting instructions."""
