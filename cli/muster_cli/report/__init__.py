"""What commands print: pure functions from values to lines."""
