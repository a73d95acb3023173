"""What the parts that serve HTTP share: a FastAPI application, its refusals, and its documentation offline."""
