"""Pages for a browser: one self-contained HTML file, put together from sections."""
