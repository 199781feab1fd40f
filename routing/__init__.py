"""What to do about it: decisions, fixed thresholds and the learned choice."""
