"""`muster doctor`: what is wrong with the installation, and how to mend it. Reads only.

Each area has facts (read by `reading`) and a judge (facts in, findings out). What may not be looked at is a finding of
its own, and hinders no other.
"""
