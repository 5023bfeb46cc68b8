"""The studies, one folder per command.

Executors, compilers and the oracle are imported by the functions that use them, so that `list` starts quickly.
"""
