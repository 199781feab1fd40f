"""The page on which a log is looked at."""
