"""The output of commands about many nodes: rows, live table, progress."""
