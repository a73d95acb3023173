"""From a job and what was observed to what is done next. Pure."""
