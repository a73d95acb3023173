"""What becomes of an IPUJob before it is stored: filled in, then judged. Pure, but for the server of both."""
