"""What is said of a path or a method that a service does not have: what it has."""

from muster_kube.http.service import Service


def list_routes(service: Service) -> str:
    """``GET /, /partitions; POST /partitions``, for people."""
    paths: dict[str, list[str]] = {}
    for path, methods in service.served().items():
        for method in methods:
            paths.setdefault(method, []).append(path)
    return "; ".join(f"{method} {', '.join(found)}" for method, found in sorted(paths.items()))
