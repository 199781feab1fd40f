"""Writes the writing assistant's turns, trains its small models, measures it: docs/research/writing-assistant.md."""
