"""Reads how good a response is from the response: features, predictors, probes, stated confidence."""
