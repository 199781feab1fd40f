"""A writing assistant for metaprobe: a system and task sets, a page on this machine, and a tool for a study."""
