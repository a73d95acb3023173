"""Admission of IPUJobs: defaulting, then validation. All of it is pure except the webhook server."""
