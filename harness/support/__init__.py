"""Facilities that do not depend on kernels: cache, files, progress, intervals, GPU data sheets, errors."""
