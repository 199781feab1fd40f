"""Accept a direct answer, or ask again step by step: learned where both ways' outcomes are known."""
