"""The learned router: from outcomes to a checkpoint with its cost-accuracy curve."""
