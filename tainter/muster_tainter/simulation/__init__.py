"""The time machine: a fleet, its faults, repairs and jobs on a simulated clock, under the real decision code."""
