"""A running sandbox: its folder, its processes, and the actions on its nodes."""
