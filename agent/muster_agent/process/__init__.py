"""The process of the agent: its privileges and its memory."""
