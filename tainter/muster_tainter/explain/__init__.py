"""Why a node is tainted, and what a policy would have done: decisions told again from what was recorded."""
