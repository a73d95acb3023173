"""Shared by the components that serve HTTP: a FastAPI application, its error responses, and offline documentation."""
