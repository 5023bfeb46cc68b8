"""`traffic`: the breakdown of a variant's bytes on one problem, or over a field of it."""
