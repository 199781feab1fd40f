"""Probes on hidden states: confidence and difficulty."""
