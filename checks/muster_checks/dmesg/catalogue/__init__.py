"""The meaning of kernel lines: the rows, their file formats, and how they are matched."""
