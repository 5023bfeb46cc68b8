"""`compare`: every variant on one problem, checked, counted, ranked."""
