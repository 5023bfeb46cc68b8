"""The table of docs/hopper.md: its problems, their measurement on a GPU, and the page."""
