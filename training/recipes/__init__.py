"""One recipe a file: how a kind of checkpoint is fitted, scored and exported."""
