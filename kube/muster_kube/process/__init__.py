"""Common to the processes of all components: settings, log, listening address, lifetime."""
