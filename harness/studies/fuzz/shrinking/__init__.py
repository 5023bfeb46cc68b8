"""Makes a failing case smaller and describes what is wrong with its output."""
