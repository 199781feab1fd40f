"""A study in which people compare assistants: its survey, its orders, the answers, and their analysis."""
