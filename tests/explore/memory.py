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
from collections.abc import Callable, Hashable, Mapping
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
        self._readers: dict[type, _Reader] = {}

    def read(self, *roots: object) -> Hashable:
        return _Reading(self).of(tuple(roots))

    def reader_of(self, kind: type) -> "_Reader":
        """How objects of this type are read."""
        known = self._readers.get(kind)
        if known is None:
            known = self._readers[kind] = self._choose(kind)
        return known

    def _choose(self, kind: type) -> "_Reader":
        if issubclass(kind, self.left_out) and not issubclass(kind, Enum):
            return lambda _, obj: type(obj).__name__
        return next((reader for kinds, reader in _READERS if issubclass(kind, kinds)), _numbered(_Reading.fields_of))


class _Reading:
    def __init__(self, reader: MemoryReader) -> None:
        self._reader = reader
        self._numbers: dict[int, int] = {}
        self._kept: list[object] = []  # so that no address is used twice

    def of(self, obj: Any) -> Hashable:
        return self._reader.reader_of(type(obj))(self, obj)

    def number(self, obj: object) -> int | None:
        """Its number if it was met before; else it gets one."""
        number = self._numbers.get(id(obj))
        if number is None:
            self._numbers[id(obj)] = len(self._numbers)
            self._kept.append(obj)
        return number

    def cell(self, cell: types.CellType) -> Hashable:
        try:
            return self.of(cell.cell_contents)
        except ValueError:
            return "empty"

    def fields_of(self, obj: Any) -> Hashable:
        names = [name for kind in type(obj).__mro__ for name in _slots(kind)]
        fields = [(name, getattr(obj, name)) for name in names if hasattr(obj, name)]
        fields += getattr(obj, "__dict__", {}).items()
        kind, out = type(obj).__name__, self._reader.fields
        return kind, tuple((name, self.of(value)) for name, value in fields if f"{kind}.{name}" not in out)

    def coroutine(self, running: Any) -> Hashable:
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


_Reader = Callable[[_Reading, Any], Hashable]


def _numbered(contents: _Reader) -> _Reader:
    """Of objects that can be met again, also within themselves."""

    def read(reading: _Reading, obj: Any) -> Hashable:
        number = reading.number(obj)
        return contents(reading, obj) if number is None else ("seen", number)

    return read


def _struct(reading: _Reading, obj: msgspec.Struct) -> Hashable:
    if obj.__struct_config__.frozen:
        return type(obj).__name__, _encoded(obj)
    return _numbered(_Reading.fields_of)(reading, obj)


def _any_order(reading: _Reading, obj: Any) -> Hashable:
    return frozenset(map(reading.of, sorted(obj, key=repr)))


def _items(reading: _Reading, obj: Mapping[Any, Any]) -> Hashable:
    return "dict", tuple((reading.of(key), reading.of(value)) for key, value in obj.items())


def _task(reading: _Reading, obj: "asyncio.Task[Any]") -> Hashable:
    return ("task", True) if obj.done() else ("task", reading.coroutine(obj.get_coro()))


def _handle(reading: _Reading, obj: asyncio.Handle) -> Hashable:
    return "handle", reading.of(getattr(obj, "_callback", None)), reading.of(getattr(obj, "_args", None))


def _partial(reading: _Reading, obj: "functools.partial[Any]") -> Hashable:
    return "partial", reading.of(obj.func), reading.of(obj.args), reading.of(obj.keywords)


def _function(reading: _Reading, obj: types.FunctionType) -> Hashable:
    return obj.__qualname__, tuple(map(reading.cell, obj.__closure__ or ()))


# the first row that fits a type; others are read field by field
_READERS: tuple[tuple[type | tuple[type, ...], _Reader], ...] = (
    (Enum, lambda _, obj: obj.name),
    (_PLAIN, lambda _, obj: obj),
    (msgspec.Struct, _struct),
    (tuple, lambda reading, obj: tuple(map(reading.of, obj))),
    (frozenset, _any_order),
    (Mapping, _numbered(_items)),
    ((list, deque), _numbered(lambda reading, obj: ("list", tuple(map(reading.of, obj))))),
    (set, _numbered(_any_order)),
    (asyncio.Task, _numbered(_task)),
    (asyncio.Future, _numbered(lambda _, obj: ("future", obj.done()))),
    (asyncio.Event, _numbered(lambda _, obj: ("event", obj.is_set()))),
    (asyncio.TimerHandle, _numbered(lambda *_: "timer")),  # in what order they fire is the loop's to say
    (asyncio.Handle, _numbered(_handle)),
    (functools.partial, _numbered(_partial)),
    (types.MethodType, _numbered(lambda reading, obj: ("method", obj.__func__.__qualname__, reading.of(obj.__self__)))),
    (types.FunctionType, _numbered(_function)),
    (types.CellType, _numbered(_Reading.cell)),
    (
        (types.CoroutineType, types.AsyncGeneratorType, types.GeneratorType),
        _numbered(lambda reading, obj: reading.coroutine(obj)),
    ),
)


@functools.cache
def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    if issubclass(kind, msgspec.Struct) and kind is not msgspec.Struct:
        names = kind.__struct_fields__
    return tuple(n for n in names if n not in ("__weakref__", "__dict__"))


def _encoded(obj: msgspec.Struct) -> bytes:
    return msgspec.msgpack.encode(obj, enc_hook=repr)
