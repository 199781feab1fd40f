"""Task sets: items that a program can check."""
