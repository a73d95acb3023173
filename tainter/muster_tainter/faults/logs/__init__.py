"""The tainter's log of decisions: what was written, and what a dry run would have written."""
