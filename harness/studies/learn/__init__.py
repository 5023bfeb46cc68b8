"""`learn`: the path from the softmax of the definition to FlashAttention-3, one idea a step."""
