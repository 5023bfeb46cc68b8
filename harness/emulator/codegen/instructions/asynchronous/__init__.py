"""Emitters of asynchronous copies, of the mbarriers that they complete, and of tensor maps."""
