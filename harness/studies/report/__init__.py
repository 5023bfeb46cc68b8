"""`report`: a page for a browser on all variants and one problem."""
