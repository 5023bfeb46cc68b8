"""The mathematics that can be asked for, a folder each. Knows no kernel."""
