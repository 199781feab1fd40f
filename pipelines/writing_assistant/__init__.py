"""The writing assistant of MetaCrit (section 4, appendices I and J): a file a module, and three conditions."""
