"""The error of a command line that cannot be carried out."""


class UsageError(Exception):
    """What was typed cannot be done; one line for each problem."""
