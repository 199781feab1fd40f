"""A new version takes the running one's place only where it is shown to be better."""
