"""What controllers are made of: reflector, work queue, lease, backoff."""
