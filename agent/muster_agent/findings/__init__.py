"""What the checks have found: open and cleared findings, and the NodeHealth status they make."""
