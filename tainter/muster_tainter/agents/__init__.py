"""Agents: their liveness, and the rule that each reports only on its own node."""
