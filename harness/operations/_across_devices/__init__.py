"""What operations have in common that several devices compute together: how rows are divided and results merged."""
