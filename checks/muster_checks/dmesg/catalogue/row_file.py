"""The file format of catalogue rows, shipped and users': parses and validates it.

A user's file::

    rows:                      # changes the shipped row of the same name, or adds a row
      - {name: OOMKilling, verdict: PASS}          # PASS: switches the row off
      - {name: MyRow, pattern: 'my driver .* died', component: host, verdict: FAIL, class: reboot, message: it died}
    xid: {79: {verdict: WARN, class: contact}}     # one verdict for the code, whatever the rest of the line
    sxid: {20034: {verdict: FAIL, class: reset}}

A pattern matches at the beginning of a message. ``anywhere: true`` lets it match anywhere, also in text that a tenant
chose; so does a pattern that begins with ``.*``. Loading such a row logs a warning.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from muster_checks.base.user_yaml import FAST_LOADER, field_path, load_yaml, show_value, yaml_problem
from muster_checks.base.vocabulary import FaultClass, Verdict
from muster_checks.dmesg.catalogue.match import SET_INSTRUCTIONS, Pattern
from muster_checks.dmesg.catalogue.templates import template_names
from muster_checks.dmesg.catalogue.types import (
    COUNT_LIMIT,
    QUIET_S,
    UNKNOWN_SXID,
    UNKNOWN_XID,
    Catalogue,
    CatalogueError,
    PatternRow,
    SxidRow,
    XidRow,
)

_log = logging.getLogger(__name__)

FILE_BYTES = 1 << 20
ROWS_LIMIT = 500
_NAME = r"^[A-Za-z][A-Za-z0-9_:,]{0,62}$"  # the characters of a Kubernetes condition's reason
_SKIPS = re.compile(r"\^?(?:\(\?[a-zA-Z]*[:)]|\()*(?:\.|\\S|\[\^[^\]]*\])[*+]")  # begins with .* or the like
_DERIVED = {"driver": "kind", "uuid": "bdf"}


def _is_re2(pattern: str) -> str:
    try:
        Pattern(pattern)
    except ValueError as error:
        raise ValueError(f"{error}; expected RE2 syntax") from None
    return pattern


Regex = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_is_re2)]
Regexes = Annotated[
    list[Regex],
    BeforeValidator(lambda given: [given] if isinstance(given, str) else given),
    Field(min_length=1, max_length=20),
]
Seconds = Annotated[float, Field(gt=0, le=31_536_000, allow_inf_nan=False)]
Judgement = Literal["PASS", "WARN", "FAIL"]
ClassName = Literal["", "none", "restart-app", "reset", "reboot", "replace", "contact"]
Clears = Literal["boot", "driver", "person", "quiet"]
Bit = Annotated[int, Field(ge=0, le=63)]
Text = Annotated[str, Field(max_length=1000)]


class Form(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ContextForm(Form):
    pattern: Regex
    within_s: Seconds


class AfterForm(Form):
    row: str
    within_s: Seconds


class RowForm(Form):
    """One row of ``rows:``; :class:`muster_checks.dmesg.catalogue.types.PatternRow` documents the keys."""

    name: Annotated[str, Field(pattern=_NAME)]
    pattern: Regexes
    component: Annotated[str, Field(pattern=r"^(?:host|[a-z{][a-z0-9_}]*/\S+)$", max_length=200)]
    verdict: Judgement
    fault_class: Annotated[ClassName, Field(alias="class")] = ""
    message: Text
    description: Text = ""
    source: Text = ""
    clears: Clears | None = None
    quiet_s: Seconds | None = None
    count: Annotated[int, Field(ge=1, le=COUNT_LIMIT)] = 1
    window_s: Seconds | None = None
    clear_pattern: Regex | None = None
    context: ContextForm | None = None
    after: AfterForm | None = None
    covered_by: Annotated[list[str], Field(max_length=20)] = []
    status_set: list[Bit] = []
    status_clear: list[Bit] = []
    anywhere: bool = False
    node_process: bool = False
    node_disk: bool = False

    @model_validator(mode="after")
    def _hang_together(self) -> "RowForm":
        groups = {name for pattern in self._patterns() for name in Pattern(pattern).names}
        groups |= {derived for given, derived in _DERIVED.items() if given in groups}
        for key, template, more in (("component", self.component, set()), ("message", self.message, {"count"})):
            for name in template_names(template):
                if name not in groups | more:
                    known = ", ".join(sorted(groups | more)) or "none: its patterns have no named group"
                    raise ValueError(f"{key}: {{{name}}}: no pattern has this group; expected one of: {known}")
        if self.verdict == "FAIL" and (self.clears == "quiet" or self.quiet_s is not None):
            raise ValueError(
                "quiet_s: a FAIL does not end by itself; expected verdict WARN, or clears: boot, driver or person"
            )
        if self.count > 1 and self.window_s is None:
            raise ValueError("count: a count above 1 requires window_s")
        if (self.status_set or self.status_clear) and "status" not in groups:
            raise ValueError("status_set: the pattern has no group named status")
        if self.node_process and not groups >= {"task", "pid"}:
            raise ValueError("node_process: the pattern needs groups named task and pid; expected both, or false")
        if self.node_disk and "disk" not in groups:
            raise ValueError("node_disk: the pattern has no group named disk; expected one, or false")
        return self

    def _patterns(self) -> list[str]:
        return self.pattern + ([self.context.pattern] if self.context else [])

    def row(self) -> PatternRow:
        verdict = Verdict(self.verdict)
        return PatternRow(
            name=self.name,
            patterns=tuple(self.pattern),
            component=self.component,
            message=self.message,
            verdict=verdict,
            fault_class=_fault_class(self.fault_class),
            description=self.description,
            clears=self.clears or _default_clears(verdict),
            source=self.source,
            count=self.count,
            window_s=self.window_s or 0.0,
            clear_pattern=self.clear_pattern or "",
            context=self.context.pattern if self.context else "",
            context_s=self.context.within_s if self.context else 0.0,
            after=self.after.row if self.after else "",
            after_s=self.after.within_s if self.after else 0.0,
            covered_by=tuple(self.covered_by),
            status_set=sum(1 << bit for bit in set(self.status_set)),
            status_clear=sum(1 << bit for bit in set(self.status_clear)),
            quiet_s=self.quiet_s or QUIET_S,
            anywhere=self.anywhere,
            node_process=self.node_process,
            node_disk=self.node_disk,
        )


def count_instructions(rows: Iterable[PatternRow]) -> int:
    """The total size of all their patterns, in RE2 instructions."""
    patterns = [p for row in rows for p in (*row.patterns, row.clear_pattern, row.context) if p]
    return sum(Pattern(pattern).instructions for pattern in patterns)


class CodeForm(Form):
    """A user's setting for an Xid or SXid: one verdict, whatever the rest of the line."""

    verdict: Judgement
    fault_class: Annotated[ClassName, Field(alias="class")] = ""
    description: Text | None = None
    clears: Clears | None = None
    quiet_s: Seconds | None = None

    @model_validator(mode="after")
    def _hang_together(self) -> "CodeForm":
        if self.verdict == "FAIL" and (self.clears == "quiet" or self.quiet_s is not None):
            raise ValueError(
                "quiet_s: a FAIL does not end by itself; expected verdict WARN, or clears: boot, driver or person"
            )
        return self

    def changes(self) -> dict[str, Any]:
        verdict = Verdict(self.verdict)
        given: dict[str, Any] = {"description": self.description, "quiet_s": self.quiet_s}
        return {
            "verdict": verdict,
            "fault_class": _fault_class(self.fault_class),
            "clears": self.clears or _default_clears(verdict),
            "source": "the user's own catalogue",
            **{key: value for key, value in given.items() if value is not None},
        }


Code = Annotated[int, Field(ge=1, le=99_999)]


class FileForm(Form):
    """A user's file. Each of its rows is merged over the shipped row of the same name and then validated."""

    rows: Annotated[list[dict[str, Any]], Field(max_length=ROWS_LIMIT)] = []
    xid: dict[Code, CodeForm] = {}
    sxid: dict[Code, CodeForm] = {}


def _fault_class(name: str) -> FaultClass:
    return FaultClass("" if name == "none" else name)


def _default_clears(verdict: Verdict) -> str:
    return {Verdict.FAIL: "boot", Verdict.WARN: "quiet"}.get(verdict, "")


def _shipped_files() -> dict[str, dict[str, Any]]:
    """The parsed files of rows, by name; kernel.yaml comes first."""
    found = [file for file in (files(__package__) / "rows").iterdir() if file.name.endswith(".yaml")]
    return {
        file.name: yaml.load(file.read_text("utf-8"), Loader=FAST_LOADER)  # noqa: S506 - a safe loader
        for file in sorted(found, key=lambda file: (file.name != "kernel.yaml", file.name))
    }


def _shipped_forms() -> dict[str, dict[str, Any]]:
    return {form["name"]: form for loaded in _shipped_files().values() for form in loaded["rows"]}


def load_shipped_rows() -> tuple[PatternRow, ...]:
    """All shipped rows. Raises CatalogueError, which the tests of this package catch before a release."""
    return tuple(
        msgspec.structs.replace(_check_row(name, index, form).row(), vendor=loaded.get("vendor", ""))
        for name, loaded in _shipped_files().items()
        for index, form in enumerate(loaded["rows"])
    )


def apply_user_file(catalogue: Catalogue, path: Path) -> Catalogue:
    """``catalogue`` changed by a user's file. Raises CatalogueError."""
    given = _read_user_file(path)
    try:
        user = FileForm.model_validate(given)
    except ValidationError as error:
        raise CatalogueError(_describe_error(f"{path.name}: ", _worst(error), FileForm, given)) from None
    shipped = _shipped_forms()
    rows = {row.name: row for row in catalogue.rows}
    named: set[str] = set()
    for index, form in enumerate(user.rows):
        name = form.get("name")
        form = {**shipped.get(name, {}), **form} if isinstance(name, str) else form
        if form.get("verdict") == "FAIL" and "quiet_s" not in user.rows[index]:
            form.pop("quiet_s", None)  # the user turned a shipped WARN into a FAIL
        row = _check_row(path.name, index, form).row()
        if row.name in named:
            raise CatalogueError(f"{path.name}: rows[{index}] ({row.name}).name: given twice; expected each name once")
        named.add(row.name)
        if row.verdict is not Verdict.PASS and (row.anywhere or any(map(_SKIPS.match, row.patterns))):
            _log.warning(
                "%s: rows[%d] (%s): matches anywhere in a kernel message, also in text that a tenant chose: "
                "begin the pattern with the driver's own prefix",
                path.name,
                index,
                row.name,
            )
        rows[row.name] = row
    for index, form in enumerate(user.rows):
        row = rows[form["name"]]
        if row.after and row.after not in rows:
            where = f"{path.name}: rows[{index}] ({row.name}).after.row"
            raise CatalogueError(f'{where}: "{row.after}": expected the name of a row')
    check_size(path.name, tuple(rows.values()))
    return Catalogue(
        {**catalogue.xids, **{code: _xid(catalogue, code, form) for code, form in user.xid.items()}},
        {**catalogue.sxids, **{code: _sxid(catalogue, code, form) for code, form in user.sxid.items()}},
        tuple(rows.values()),
    )


def _xid(catalogue: Catalogue, code: int, form: CodeForm) -> XidRow:
    known = catalogue.xids.get(code, UNKNOWN_XID)
    return msgspec.structs.replace(known, code=code, decode="", **form.changes())


def _sxid(catalogue: Catalogue, code: int, form: CodeForm) -> SxidRow:
    known = catalogue.sxids.get(code, UNKNOWN_SXID)
    changes = form.changes()
    return msgspec.structs.replace(
        known, code=code, verdict_if_fatal=changes["verdict"], class_if_fatal=changes["fault_class"], **changes
    )


def _read_user_file(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES + 1)
        if len(raw) > FILE_BYTES:
            raise CatalogueError(f"{path.name}: longer than {FILE_BYTES} bytes")
        return load_yaml(raw.decode("utf-8")) or {}
    except OSError as error:
        raise CatalogueError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise CatalogueError(f"{path.name}: not UTF-8 at byte {error.start}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise CatalogueError(f"{path.name}: {yaml_problem(error)}") from None


def _check_row(file: str, index: int, form: Mapping[str, Any]) -> RowForm:
    try:
        return RowForm.model_validate(form)
    except ValidationError as error:
        name = form.get("name")
        where = f"{file}: rows[{index}] ({name})." if isinstance(name, str) else f"{file}: rows[{index}]."
        raise CatalogueError(_describe_error(where, _worst(error), RowForm, form)) from None


def _worst(error: ValidationError) -> ErrorDetails:
    """The error to report: a mistyped key before the missing key that it causes."""
    errors = error.errors()
    return next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])


def _describe_error(where: str, error: ErrorDetails, form: type[Form], given: Any) -> str:
    """One error as ``where.key: value: problem``."""
    loc = error["loc"]
    if loc[:1] == ("pattern",) and isinstance(given, Mapping) and isinstance(given.get("pattern"), str):
        loc = loc[:1]  # the user did not write a list
    path = field_path(loc)
    message = error["msg"].removeprefix("Value error, ").replace("String should match pattern", "expected")
    if error["type"] == "extra_forbidden":
        inner: dict[str, type[Form]] = {"context": ContextForm, "after": AfterForm}
        holder = form if len(error["loc"]) == 1 else inner.get(str(error["loc"][0]), CodeForm)
        allowed = ", ".join(field.alias or name for name, field in holder.model_fields.items())
        return f"{where}{path}: unknown key; expected one of: {allowed}"
    if error["type"] == "missing":
        return f"{where}{path}: missing"
    if not path:  # the message of a rule over several keys contains the key
        return f"{where}{message}" if isinstance(given, Mapping) else f"{where}{message.lower()}"
    return f"{where}{path}: {show_value(error['input'])}: {message}"


def check_size(file: str, rows: tuple[PatternRow, ...]) -> None:
    """Raises CatalogueError if the patterns exceed the limit for one scan."""
    total = count_instructions(rows)
    if total > SET_INSTRUCTIONS:
        raise CatalogueError(
            f"{file}: the patterns, with the shipped ones, need {total} RE2 instructions; expected at most "
            f"{SET_INSTRUCTIONS} (counted repetitions such as x{{1000}} need many)"
        )
