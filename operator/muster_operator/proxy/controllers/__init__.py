"""The V-IPU controllers: their list, calls to them, and their capacity."""
