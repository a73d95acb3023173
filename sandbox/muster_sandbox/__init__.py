"""A whole cluster on one machine: what `muster sandbox` starts and the tests stand on."""
