"""Observers of the emulator: races, uninitialised reads. None so far; bounds are checked by the emulator itself."""
