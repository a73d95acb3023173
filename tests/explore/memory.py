"""What a process remembers, as a value that can be compared: the canonical form of a graph of objects.

Everything that is reachable counts, also the local variables of tasks that wait, so two processes with equal memories
behave alike from there on. What a program only reports (metrics, logs) and what never changes (policies, clients) is
left out by type. Objects are numbered in the order in which they are met, so identity and cycles are kept, and
addresses are not part of the result.
"""

import asyncio
import functools
import logging
import random
import re
import types
import weakref
from collections import deque
from collections.abc import Hashable, Mapping
from enum import Enum
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from pydantic import BaseModel

_PLAIN = (type(None), bool, int, float, str, bytes, complex)
_CONSTANT = (
    logging.Logger, types.ModuleType, type, asyncio.AbstractEventLoop, CollectorRegistry, MetricWrapperBase, BaseModel,
    random.Random, weakref.ref, asyncio.TaskGroup, asyncio.Timeout, msgspec.json.Decoder, msgspec.json.Encoder,
    types.BuiltinFunctionType, re.Pattern,
)  # fmt: skip


class MemoryReader:
    """left_out: types whose objects never matter for what a process does next. fields: the same, as ``Type.field``

    idle: functions that wait without anything that matters, such as workers of a queue
    dead: local variables that are not used any more where their function waits, as ``function.variable``
    """

    def __init__(self, *left_out: type, fields: tuple[str, ...] = (), idle: tuple[str, ...] = (),
                 dead: tuple[str, ...] = ()) -> None:  # fmt: skip
        self.left_out = (*_CONSTANT, *left_out)
        self.fields, self.idle, self.dead = frozenset(fields), frozenset(idle), frozenset(dead)

    def read(self, *roots: object) -> Hashable:
        return _Reading(self).of(tuple(roots))


class _Reading:
    def __init__(self, reader: MemoryReader) -> None:
        self._reader = reader
        self._left_out = reader.left_out
        self._numbers: dict[int, int] = {}
        self._kept: list[object] = []  # so that no address is used twice

    def of(self, obj: Any) -> Hashable:
        if isinstance(obj, Enum):
            return obj.name
        if isinstance(obj, _PLAIN):
            return obj
        if isinstance(obj, self._left_out):
            return type(obj).__name__
        if isinstance(obj, msgspec.Struct) and obj.__struct_config__.frozen:
            return type(obj).__name__, _encoded(obj)
        if isinstance(obj, tuple):
            return tuple(map(self.of, obj))
        if isinstance(obj, frozenset):
            return frozenset(map(self.of, sorted(obj, key=repr)))
        number = self._numbers.get(id(obj))
        if number is not None:
            return "seen", number
        self._numbers[id(obj)] = len(self._numbers)
        self._kept.append(obj)
        return self._contents(obj)

    def _contents(self, obj: Any) -> Hashable:
        match obj:
            case Mapping():
                return "dict", tuple((self.of(key), self.of(value)) for key, value in obj.items())
            case list() | deque():
                return "list", tuple(map(self.of, obj))
            case set():
                return frozenset(map(self.of, sorted(obj, key=repr)))
            case asyncio.Task():
                return ("task", obj.done()) if obj.done() else ("task", self._coroutine(obj.get_coro()))
            case asyncio.Future():
                return "future", obj.done()
            case asyncio.Event():
                return "event", obj.is_set()
            case asyncio.TimerHandle():
                return "timer"  # in what order they fire is the loop's to say
            case asyncio.Handle():
                return "handle", self.of(getattr(obj, "_callback", None)), self.of(getattr(obj, "_args", None))
            case functools.partial():
                return "partial", self.of(obj.func), self.of(obj.args), self.of(obj.keywords)
            case types.MethodType():
                return "method", obj.__func__.__qualname__, self.of(obj.__self__)
            case types.FunctionType():
                cells = obj.__closure__ or ()
                return obj.__qualname__, tuple(self._cell(cell) for cell in cells)
            case types.CellType():
                return self._cell(obj)
            case types.CoroutineType() | types.AsyncGeneratorType() | types.GeneratorType():
                return self._coroutine(obj)
            case _:
                return self._object(obj)

    def _cell(self, cell: types.CellType) -> Hashable:
        try:
            return self.of(cell.cell_contents)
        except ValueError:
            return "empty"

    def _object(self, obj: Any) -> Hashable:
        names = [name for kind in type(obj).__mro__ for name in _slots(kind)]
        fields = [(name, getattr(obj, name)) for name in names if hasattr(obj, name)]
        fields += getattr(obj, "__dict__", {}).items()
        kind, out = type(obj).__name__, self._reader.fields
        return kind, tuple((name, self.of(value)) for name, value in fields if f"{kind}.{name}" not in out)

    def _coroutine(self, running: Any) -> Hashable:
        """Where it waits, and what its frames hold."""
        frames: list[Hashable] = []
        while running is not None:
            for kind in ("cr", "ag", "gi"):
                frame = getattr(running, f"{kind}_frame", None)
                if frame is not None or hasattr(running, f"{kind}_frame"):
                    break
            else:
                frames.append(self.of(running) if isinstance(running, asyncio.Future) else type(running).__name__)
                break
            if frame is None:
                frames.append("ended")
                break
            name = frame.f_code.co_qualname
            if name in self._reader.idle:
                return str(name)
            dead = self._reader.dead
            held = tuple(
                (each, self.of(value)) for each, value in frame.f_locals.items() if f"{name}.{each}" not in dead
            )
            frames.append((name, frame.f_lasti, held))
            running = getattr(running, f"{kind}_await" if kind != "gi" else "gi_yieldfrom", None)
        return tuple(frames)


@functools.cache
def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    if issubclass(kind, msgspec.Struct) and kind is not msgspec.Struct:
        names = kind.__struct_fields__
    return tuple(n for n in names if n not in ("__weakref__", "__dict__"))


def _encoded(obj: msgspec.Struct) -> bytes:
    return msgspec.msgpack.encode(obj, enc_hook=repr)
