"""The output of commands: functions from values to lines, and progress on stderr."""
