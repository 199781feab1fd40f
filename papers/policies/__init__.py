"""Policies of the papers' systems: those that explore while collecting, profiles of agents, review, a panel."""
