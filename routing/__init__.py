"""Decides what to do about an answer: the papers' rules, policies, the learned router and choice, the streaming
gate."""
