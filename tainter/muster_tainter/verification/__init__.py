"""Heavy checks over the fleet, and proof that a faulty node is well again."""
