"""Plans run natively: launches, stopwatch, clocks, counters, compute-sanitizer, libraries."""
