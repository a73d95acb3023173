"""Checks that an operator brings as files: node-problem-detector's configurations, Nagios plug-ins (docs/plugins.md).

``folder.py`` reads the folder; each file that can be used becomes one check, the others are named with what is wrong.
"""
