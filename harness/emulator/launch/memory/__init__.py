"""The memory of a launch as host arrays: buffers, variables of modules, and the sanitizer's tables."""
