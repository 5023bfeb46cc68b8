"""Groups of command-line options that several commands share, and the objects that their values are read into."""
