"""Items of many task families, and the recordings of three models' answers to them."""
