"""One plan, run and judged: the executors' protocol, counts, questions, attempts."""
