"""The JSON of /status, and its published schema (GET /schema/status.json), both from the same types."""

from typing import Any

import msgspec

from muster_agent.query.node_answer import NodeAnswer
from muster_checks.base.vocabulary import Verdict

PLACE = "/schema/status.json"


class Ending(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The last line of format=jsonl, and what follows the nodes in format=json.

    summary: by node, what is wrong with it, or ``["Ok"]``
    verdict: the worst of all nodes; UNKNOWN where there is none
    notes:   what was given in the query and had no effect
    error:   why the answer is not whole; absent while it is
    """

    summary: dict[str, list[str]]
    runtime_seconds: float
    verdict: Verdict
    notes: tuple[str, ...] = ()
    error: str = ""


class StatusDocument(Ending, frozen=True, kw_only=True, rename="camel"):
    """The whole of format=json. nodes: as they answered."""

    nodes: tuple[NodeAnswer, ...]


def status_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of format=json. A line of format=jsonl is ``#/$defs/NodeAnswer``, the last one
    ``#/$defs/Ending``."""
    (_, _), definitions = msgspec.json.schema_components([StatusDocument, Ending])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "answer of muster's /status",
        "$ref": "#/$defs/StatusDocument",
        "$defs": definitions,
    }
