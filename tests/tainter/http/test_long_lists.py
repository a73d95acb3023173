"""A list of the whole fleet, and a client that reads it slowly."""

import asyncio
import json
from itertools import count, islice
from typing import Any

import pytest

from muster_tainter.http.routes import stream_list


@pytest.mark.parametrize("rows", [[], [1], list(range(200)), [{"a": number} for number in range(1001)]])
async def test_it_is_one_json_array(rows: list[Any]) -> None:
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    await stream_list(rows)({"type": "http"}, asyncio.Event().wait, send)  # type: ignore[arg-type] # nobody disconnects
    assert json.loads(b"".join(sent)) == rows


async def test_rows_are_made_only_as_they_are_read() -> None:
    made = count()
    bodies, stuck = 0, asyncio.Event()

    async def send(message: Any) -> None:
        nonlocal bodies
        bodies += message["type"] == "http.response.body"
        if bodies == 2:
            stuck.set()
            await asyncio.Event().wait()

    answering = asyncio.create_task(stream_list(islice(made, 10_000))({"type": "http"}, asyncio.Event().wait, send))  # type: ignore[arg-type]
    await stuck.wait()
    for _ in range(50):
        await asyncio.sleep(0)
    assert next(made) < 1000
    answering.cancel()
    await asyncio.gather(answering, return_exceptions=True)
