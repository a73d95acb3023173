"""What tests of checks are written with: nodes made of files, tools that replay what they printed, pytest fixtures."""
