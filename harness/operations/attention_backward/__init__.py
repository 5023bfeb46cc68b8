"""The gradients of attention: dQ, dK and dV of Q, K, V, O, lse and dO."""
