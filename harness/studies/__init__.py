"""What a user asks, a folder for each command.

Executors, compilers and the oracle are imported by the functions that use them: `list` waits for none of them.
"""
