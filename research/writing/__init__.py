"""Writes the turns of the writing assistant, trains its small models, and measures it; docs/writing-assistant.md."""
