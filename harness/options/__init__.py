"""Groups of command-line options that several studies share, and what they come to."""
