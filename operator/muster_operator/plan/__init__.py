"""Pure planning: from a job and the observed state to the next actions."""
