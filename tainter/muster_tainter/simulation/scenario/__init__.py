"""What is simulated: the files that describe a fleet, its faults and its jobs."""
