"""The agents: whether they live, and that each reports on its own node only."""
