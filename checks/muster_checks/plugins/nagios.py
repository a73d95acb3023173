"""Nagios plug-ins as checks: an executable whose exit code is the verdict (0 PASS, 1 WARN, 2 FAIL, 3 UNKNOWN).

Written as a YAML file in the folder of plug-ins::

    kind: nagios
    name: rootdisk
    command: [/usr/lib/nagios/plugins/check_disk, -w, 20%, -c, 10%, -p, /]
    class: contact          # the class of a FAIL; without it the default policy only raises an Event
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from muster_checks.base.commands import AFTER_KILL_S, Output
from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.execution import ToolMissing
from muster_checks.base.npd_json import FILE_BYTES, FileRefused, first_error
from muster_checks.base.user_yaml import load_yaml, yaml_problem
from muster_checks.base.vocabulary import FaultClass, Finding, Verdict, shorten
from muster_checks.plugins.perfdata import read_figures, split_output

OUTPUT_BYTES = 64 * 1024
SPARE_S = 1.0  # a run is not aborted while its plug-in still keeps to its timeout
_VERDICTS = {0: Verdict.PASS, 1: Verdict.WARN, 2: Verdict.FAIL}
_DEFAULT_TEXTS = {Verdict.PASS: "OK", Verdict.WARN: "WARNING", Verdict.FAIL: "CRITICAL", Verdict.UNKNOWN: "UNKNOWN"}


def _reject_nul(word: str) -> str:
    if "\x00" in word:
        raise ValueError("expected no NUL character")
    return word


Word = Annotated[str, Field(max_length=4096), AfterValidator(_reject_nul)]


class NagiosFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    kind: Literal["nagios"]
    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9]{0,62}$")]
    command: Annotated[list[Word], Field(min_length=1, max_length=200)]
    cost: Literal["light", "heavy"] = "light"
    period_s: Annotated[float, Field(ge=1, le=31_536_000, allow_inf_nan=False)] = 60.0
    timeout_s: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = 10.0
    component: Annotated[str, Field(pattern=r"^(?:host|[a-z][a-z0-9]*/\S+)$", max_length=128)] = "host"
    asks: Annotated[
        Literal["", "none", "restart-app", "reset", "reboot", "replace", "contact"], Field(alias="class")
    ] = ""

    @property
    def reason(self) -> str:
        """The check's name as a reason. All verdicts share it, so a WARN that becomes a FAIL is the same finding."""
        return self.name.capitalize()

    @property
    def fault_class(self) -> FaultClass:
        return FaultClass("" if self.asks == "none" else self.asks)


def read_nagios(path: Path) -> NagiosFile:
    """Raises FileRefused."""
    try:
        if not path.is_file():
            raise FileRefused("not a regular file")
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES + 1)
        if len(raw) > FILE_BYTES:
            raise FileRefused(f"longer than {FILE_BYTES >> 20} MiB")
        return NagiosFile.model_validate(load_yaml(raw))
    except ValidationError as error:
        raise FileRefused(_describe_error(error)) from None
    except OSError as error:
        raise FileRefused(f"cannot be read: {error.strerror or error}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        if isinstance(error, FileRefused):
            raise
        raise FileRefused(yaml_problem(error)) from None


def _describe_error(error: ValidationError) -> str:
    text = first_error(error)
    if text.endswith(": unknown key"):
        text += f"; expected one of: {', '.join(f.alias or name for name, f in NagiosFile.model_fields.items())}"
    return text


def nagios_check(form: NagiosFile, folder: Path) -> Check:
    """``folder``: of the file; a relative command with a slash is searched there, one without on $PATH."""
    program = form.command[0]
    if "/" in program:
        program = str((folder / program).absolute())
    return Check(
        name=form.name,
        description=f"Nagios plug-in {Path(program).name}",
        cost=Cost(form.cost),
        parameters=Parameters,
        timeout_s=form.timeout_s + AFTER_KILL_S + SPARE_S,
        devices=(form.component.partition("/")[0],),
        period_s=form.period_s,
        probe=partial(_probe, form, (program, *form.command[1:])),
        reads=" ".join(form.command),
        ran_on="the operator's own executable",
    )


async def _probe(form: NagiosFile, argv: tuple[str, ...], node: NodeView, _parameters: Any) -> Sequence[Finding]:
    output = await node.commands.run(argv, timeout_s=form.timeout_s, limit_bytes=OUTPUT_BYTES)
    return [judge(form, output)]


def judge(form: NagiosFile, output: Output) -> Finding:
    """The finding of one run. Raises ToolMissing if the executable does not exist."""
    if output.missing == "not found":
        raise ToolMissing(form.command[0], "the package that contains this plug-in (Debian: monitoring-plugins)")
    verdict = Verdict.UNKNOWN
    if output.exit_code is not None and not output.missing and not output.timed_out:
        verdict = _VERDICTS.get(output.exit_code, Verdict.UNKNOWN)
    text, figures = split_output(output.stdout.decode("utf-8", "replace"))
    known = output.exit_code in (0, 1, 2, 3)
    message = text if known and text else output.trouble or _DEFAULT_TEXTS[verdict]
    return Finding(
        component=form.component,
        verdict=verdict,
        reason=form.reason,
        message=shorten(message),
        fault_class=form.fault_class if verdict is Verdict.FAIL else FaultClass.NONE,
        measurements=read_figures(figures, warned=verdict is Verdict.WARN),
    )
