"""Where kernel messages come from: /dev/kmsg, the journal, a file."""
