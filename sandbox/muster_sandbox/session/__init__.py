"""A running sandbox: its folder, the real programs in it, and what a person does to its nodes."""
