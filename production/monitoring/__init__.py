"""Answers in production: scores are logged, labels are stored, quality is estimated and watched."""
