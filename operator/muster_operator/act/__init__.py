"""Carries out plans: API and proxy calls, Events, and the cache of refusals."""
