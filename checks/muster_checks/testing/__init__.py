"""For tests of checks: nodes made of files, tools that replay recorded output, pytest fixtures."""
