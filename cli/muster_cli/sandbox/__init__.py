"""`muster sandbox`: a whole cluster on loopback, with real agents and the real tainter, to try things on."""
