"""Sources of kernel messages: /dev/kmsg, the journal, a file."""
