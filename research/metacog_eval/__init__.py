"""Makes the rows of the task set `metacog-eval` from templates and tables of facts."""
