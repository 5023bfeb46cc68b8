"""What the scripts that record a GPU's answers share with the tests that hold the emulator against them."""
