"""How many nodes may be tainted: pools, failure domains, and incidents that raise the bar."""
