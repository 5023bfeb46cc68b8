"""Runtime functions for memory: bytes, sectors and banks of requests, asynchronous copies, and the cache model."""
