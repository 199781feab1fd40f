"""The HTTP server and proxy, watched streams, and callbacks of other libraries."""
