"""Native execution of plans on a GPU: launches, stopwatch, clocks, counters, compute-sanitizer, libraries."""
