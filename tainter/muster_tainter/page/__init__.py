"""The fleet page: its files, the rows it shows, the live feed of changes, and the one thing it may change (clear).

Everything is read from the watches' own caches, so any replica shows it, leader or not; nothing is kept twice.
"""
