"""Parsers of what Graphcore's tools print, one module for each."""
