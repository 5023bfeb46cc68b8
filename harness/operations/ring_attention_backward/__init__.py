"""The gradients of ring attention: K, V and their gradients visit each device in turn."""
