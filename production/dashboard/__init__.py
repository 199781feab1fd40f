"""The page that shows a score log."""
