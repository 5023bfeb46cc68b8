"""One launch: memory laid out, blocks spread over cores, counts, faults, findings and cache traffic collected."""
