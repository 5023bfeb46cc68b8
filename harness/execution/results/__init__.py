"""What studies came to, kept in one local store: rows to look back on, and units of work that need not run again."""
