"""What knows nothing of kernels: cache, files, progress, intervals, GPUs' data sheets, errors."""
