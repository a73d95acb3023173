"""One module for each area of `muster doctor`: facts in, findings out. Pure."""
