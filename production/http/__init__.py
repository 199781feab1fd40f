"""The server: its addresses, who may ask, the upstream behind it."""
