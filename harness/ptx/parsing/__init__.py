"""Parses PTX text into tokens and then into a `Module`."""
