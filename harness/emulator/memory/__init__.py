"""From lanes to sectors; caches come behind."""
