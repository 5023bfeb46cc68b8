"""Pages for a browser: one self-contained HTML file, assembled from sections."""
