"""Every way of judging an answer, fitted in folds on the same evidence."""
