"""Runs systems over tasks and stores the runs; reads recorded calls again for their hidden states."""
