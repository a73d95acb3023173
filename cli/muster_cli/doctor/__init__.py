"""`muster doctor`: finds problems of the installation and shows how to fix them. Changes nothing.

Each area has facts (read by `collector`) and a judge, a pure function from facts to findings. Objects that the user may
not read become a finding with the verdict UNKNOWN; the other areas are judged all the same.
"""
