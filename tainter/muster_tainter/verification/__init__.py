"""Heavy checks across the fleet, and verification that a faulty node has recovered."""
