"""What the parts share that serve HTTP: a FastAPI application that says what is wrong, and its documentation offline."""
