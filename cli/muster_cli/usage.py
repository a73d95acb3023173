"""The error of a command line that is not valid."""


class UsageError(Exception):
    """The command line is not valid. The text has one line for each problem."""
