"""One self-contained HTML file from a comparison."""
