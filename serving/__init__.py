"""Where a predictor meets traffic: the HTTP server and proxy, and what hangs it onto other libraries."""
