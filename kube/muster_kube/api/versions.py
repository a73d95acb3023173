"""Compares resourceVersions of one API server: revisions of etcd, common to all objects."""


def is_later(version: str, than: str) -> bool:
    """False if either is not a number: then the API server does not store in etcd, and they cannot be compared."""
    return version.isdigit() and than.isdigit() and int(version) > int(than)
