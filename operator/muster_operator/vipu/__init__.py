"""V-IPU controllers, by one small interface: the documented command line, and a simulator."""
