"""What shows the writing assistant's page: a scripted teacher in a model's place, and the page's pictures."""
