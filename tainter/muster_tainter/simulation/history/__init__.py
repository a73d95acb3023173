"""The past of a real fleet, from its objects and its Prometheus, as the files of a simulation."""
