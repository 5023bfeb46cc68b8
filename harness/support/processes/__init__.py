"""Manages child processes: process trees, ending, privileges and interrupts."""
