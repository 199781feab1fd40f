"""A study of assistants that people compare: its survey, its orders, the answers, and what they say."""
