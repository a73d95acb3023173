"""The agent's process: its privileges and its memory."""
