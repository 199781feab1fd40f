"""The HTTP server: its addresses, its access rules, and the upstream behind it."""
