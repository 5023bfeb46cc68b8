"""Ring attention: Q, K and V divided over devices by rows, K and V visiting each device in turn."""
