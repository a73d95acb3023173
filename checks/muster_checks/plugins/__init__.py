"""Checks from an operator's files: node-problem-detector configurations and Nagios plug-ins (docs/plugins.md).

``folder.py`` reads the folder: each usable file becomes a check, and each other file is reported with its error.
"""
