"""When thread blocks do what: events, replays, timelines and timestamps of warps."""
