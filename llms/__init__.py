"""Who is asked: a local model, or recorded calls."""
