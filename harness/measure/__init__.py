"""What is measured about an execution: how far off its outputs are."""
