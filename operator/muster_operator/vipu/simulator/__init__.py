"""A V-IPU controller that has no IPUs: what it keeps is real, what it manages is not. Pure core, HTTP around it.

Its HTTP is ours (V-IPU speaks gRPC, whose definitions are not public); its command prints the formats that are public.
"""
