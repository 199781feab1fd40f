"""The papers' systems, tasks and collections."""
