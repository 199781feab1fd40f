"""The writing assistant of MetaCrit (section 4, appendices I and J), in three conditions."""
