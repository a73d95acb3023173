"""One module for each command of `muster`."""
