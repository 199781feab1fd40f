"""What a response says about itself: features, predictors, probes, stated confidence."""
