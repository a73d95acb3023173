"""The output of commands about policies: what they do with findings and with recorded logs."""
