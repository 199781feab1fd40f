"""Run systems over tasks and keep the runs; read recorded calls again for their hidden states."""
