"""Building blocks of controllers: reflector, work queue, lease, backoff."""
