"""Tree attention: K and V divided over devices, the same Q on each, partial results merged in a tree."""
