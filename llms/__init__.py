"""Who is asked: a local model, an endpoint, or recorded calls."""
