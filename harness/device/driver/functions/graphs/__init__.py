"""Graphs of the driver: recording, nodes, dependencies, and objects of the program."""
