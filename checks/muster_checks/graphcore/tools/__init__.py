"""Parsers for the output of Graphcore's tools, one module per tool."""
