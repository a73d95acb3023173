"""V-IPU controllers behind one small interface: the documented command line, and a simulator."""
