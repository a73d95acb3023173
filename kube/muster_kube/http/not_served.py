"""Lists the routes of a service, for error messages about an unknown path or method."""

from muster_kube.http.service import Service


def list_routes(service: Service) -> str:
    """For example ``GET /, /partitions; POST /partitions``."""
    paths: dict[str, list[str]] = {}
    for path, methods in service.served().items():
        for method in methods:
            paths.setdefault(method, []).append(path)
    return "; ".join(f"{method} {', '.join(found)}" for method, found in sorted(paths.items()))
