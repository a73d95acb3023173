"""Prometheus as a source: its client, and the policy's PromQL queries."""
