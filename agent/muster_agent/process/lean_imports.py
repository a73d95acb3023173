"""Loads four libraries without the parts that an agent never uses, which saves 4 MB of its memory.

Each of them imports, whether that is wanted or not, a command line, a process pool, a second HTTP server or HTTP/2.
While it loads, a stand-in is found in the place of such a part; afterwards it is gone, and whoever imports the part
itself gets the real one. A stand-in that is used after all says what it is.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

# library -> module it imports -> what it takes from that module; None: it goes on without
_LEFT_OUT: dict[str, dict[str, tuple[str, ...] | None]] = {
    # multiprocessing and pickle; our jobs run on the event loop
    "apscheduler.schedulers.asyncio": {"apscheduler.executors.pool": ("ThreadPoolExecutor",)},
    # API servers and other agents are spoken to in HTTP/1.1
    "httpcore2": {"h2": None},
    # its own server; /metrics is answered by ours
    "prometheus_client": {
        "http.server": ("BaseHTTPRequestHandler",),
        "socketserver": ("ThreadingMixIn",),
        "wsgiref.simple_server": ("WSGIRequestHandler", "WSGIServer", "make_server"),
    },
    # its command line with click, and its logging; Server itself is in uvicorn.server
    "uvicorn": {
        "uvicorn.main": ("Server", "main", "run"),
        "logging.config": (),
        "configparser": ("RawConfigParser",),
    },
}


class ModuleStandIn:
    """A base class at most."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("left out of the agent to save memory (muster_agent/process/lean_imports.py)")


def load_lean() -> None:
    """Call it before anybody else imports them."""
    for library, parts in _LEFT_OUT.items():
        with _stand_ins(parts):
            import_module(library)


@contextmanager
def _stand_ins(parts: Mapping[str, tuple[str, ...] | None]) -> Iterator[None]:
    modules: dict[str, Any] = sys.modules  # None in it: there is no such module (documentation of importlib)
    placed = {name: _stand_in(name, taken) for name, taken in parts.items() if name not in modules}
    modules.update(placed)
    try:
        yield
    finally:
        for name in placed:
            del modules[name]


def _stand_in(name: str, taken: tuple[str, ...] | None) -> ModuleType | None:
    if taken is None:
        return None
    module = ModuleType(name, ModuleStandIn.__doc__)
    vars(module).update({word: type(word, (ModuleStandIn,), {}) for word in taken})
    return module
