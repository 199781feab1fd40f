"""Policies of the papers' systems: policies that explore while collecting, profiles of agents, review, a panel."""
