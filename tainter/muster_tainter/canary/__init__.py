"""Canaries: made-up findings that travel from agents to decisions, so that a broken way is noticed before a fault."""
