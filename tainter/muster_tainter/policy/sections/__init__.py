"""Sections of policy.yaml that stand for themselves: each module is one of them."""
