"""The fleet page: its files, rows, live feed of changes, and the clear action.

It reads everything from the watches' caches, so any replica can serve it, leader or not, without a second copy.
"""
