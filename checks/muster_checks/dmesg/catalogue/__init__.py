"""What kernel lines mean: the rows, their written form, and how they are matched."""
