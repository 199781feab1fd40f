"""A page of this machine on which answers are labelled."""
