"""What every part does as a process: settings, log, address, lifetime."""
