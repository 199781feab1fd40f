"""From fitted folds to the comparison that is printed and reported."""
