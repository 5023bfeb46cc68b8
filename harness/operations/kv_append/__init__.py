"""Appending to a paged cache: new keys and values of each sequence go to the rows that its page table names."""
