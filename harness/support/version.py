"""The version of the distribution. `pyproject.toml` reads it from here."""

VERSION = "0.1.0"
