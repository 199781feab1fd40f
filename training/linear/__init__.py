"""Linear probes on hidden states: the states, the solvers, and the choice of a layer."""
