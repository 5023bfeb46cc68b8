"""Definitions shared by Python, the runtime and generated code: memory layouts, and access to raw memory."""
