"""From PTX text to tokens to a `Module`."""
