"""The fleet page: what a browser is given (:mod:`assets`), the rows it shows (:mod:`rows`, :mod:`detail`), how they
get there live (:mod:`feed`), and the one thing it may change (:mod:`clearing`).

Everything is read from the watches' own caches, so any replica shows it, leader or not; nothing is kept twice.
"""
