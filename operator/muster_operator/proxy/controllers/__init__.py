"""The V-IPU controllers: which there are, how they are called, and how much room they have."""
