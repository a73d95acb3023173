"""The `muster` command, for people; it starts the parts too."""
