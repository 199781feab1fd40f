"""A local web page for labelling answers."""
