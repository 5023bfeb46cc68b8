"""What Python, the runtime and generated code agree on: where things lie in memory, and how it is read and written."""
