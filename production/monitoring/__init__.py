"""Answers in production: scores are logged, labels come back, quality is estimated and watched."""
