"""A kubelet's pod-resources socket: a real gRPC server that answers with the bytes it is given.

Messages are put together by hand, as the kubelet's .proto has them: tests/agent/samples has what a real kubelet sent.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc

Answer = Callable[[grpc.ServicerContext], bytes]


class Kubelet:
    """``answer``: of each List, may be exchanged at any time. ``asked``: how often, by service."""

    def __init__(self, answer: bytes = b"") -> None:
        self.answer: bytes | Answer = answer
        self.asked: list[str] = []

    @contextmanager
    def listens(self, path: Path, *, services: tuple[str, ...] = ("v1",)) -> Iterator["Kubelet"]:
        server = grpc.server(ThreadPoolExecutor(max_workers=4), options=[("grpc.max_send_message_length", -1)])
        server.add_generic_rpc_handlers([self._lister(service) for service in services])
        assert server.add_insecure_port(f"unix:{path}")
        server.start()
        try:
            yield self
        finally:
            server.stop(None).wait()
            path.unlink(missing_ok=True)

    def _lister(self, service: str) -> grpc.GenericRpcHandler:
        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            assert request == b""
            self.asked.append(service)
            return self.answer if isinstance(self.answer, bytes) else self.answer(context)

        return grpc.method_handlers_generic_handler(
            f"{service}.PodResourcesLister", {"List": grpc.unary_unary_rpc_method_handler(answer)}
        )


def field(number: int, value: bytes | str | int) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    raw = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(raw)) + raw


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def devices(resource: str, *ids: str) -> bytes:
    """One ContainerDevices, with the NUMA node that kubelets tell."""
    topology = field(3, field(1, field(1, 1)))
    return field(2, field(1, resource) + b"".join(field(2, each) for each in ids) + topology)


def claim(driver: str, *cdi: str, device: str = "device-0") -> bytes:
    """One DynamicResource. ``driver``: empty for a kubelet before 1.32 or so."""
    names = b"".join(field(1, field(1, name)) for name in cdi)
    resource = names + (field(2, driver) + field(3, "pool") + field(4, device) if driver else b"")
    return field(5, field(2, "claim") + field(3, "team-a") + field(4, resource))


def pod(name: str, *held: bytes, namespace: str = "team-a") -> bytes:
    """One pod with a container that holds ``held``, and one that holds nothing."""
    packed_cpus = field(3, b"\x01\x02\x03")
    memory = field(4, field(1, "memory") + field(2, 1 << 34))
    busy = field(3, field(1, "main") + b"".join(held) + packed_cpus + memory)
    return field(1, field(1, name) + field(2, namespace) + busy + field(3, field(1, "sidecar")))
