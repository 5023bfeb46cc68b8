"""`run`: one variant on the user's own arrays."""
