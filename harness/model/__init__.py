"""What a variant, a plan, an operation and a finding are. Plain data; nothing here needs a GPU or a compiler."""
