"""A probe from many tasks with a free number beside it: fit, what it reaches on tasks left out, export."""
