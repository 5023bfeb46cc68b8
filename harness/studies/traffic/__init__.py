"""`traffic`: where a variant's bytes go, on one problem or over a field of it."""
