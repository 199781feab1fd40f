"""Language models that answer requests: a local model, an endpoint, or recorded calls."""
