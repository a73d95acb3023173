"""Makes the reference pages, the CRD of IPUJobs and the chart's schema from the code, so that they cannot differ.

`--check`: fail where one is stale.
"""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import alerts
import api
import chart
import chart_rights
import commands
import house
import phases
import reference
import yaml

from muster_checks.base.declaration import Check
from muster_checks.base.vocabulary import Verdict
from muster_checks.dmesg.catalogue.loader import load_catalogue
from muster_checks.dmesg.catalogue.types import Catalogue, RowMeaning
from muster_checks.registry import load_registry
from muster_operator.job import crd

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "grafana"))

import dashboards  # noqa: E402  # lies beside what is made of it

CRDS = HERE.parent / "helm" / "muster" / "crds"
NOTE = "<!-- made by `make generate`; edits are overwritten -->"


INTRODUCTION = """\
To find out why Muster reports a kernel message, look up the finding's reason on this page: `Xid79` is code 79 in the
table Xid, `SXid20034` is code 20034 in the table SXid, and any other reason is a row of the table Patterns. The check
`dmesg` applies these tables to the live kernel log, or to a saved log that you pass with `--sample`.

How to read the tables:

- **vendor**: whose driver or program prints the line. All Xid and SXid are NVIDIA's.
- **verdict**: FAIL is a fault, and WARN is a symptom to watch. PASS means that the line is not a fault.
- **class**: what the fault requires: restart the application, reset the device, reboot the node, replace the part, or
  contact a person. Under the default [policy](policy.md) a FAIL of class reset, reboot, replace or contact taints the
  node, and a WARN taints no node.
- **when**: how many lines for the same component within which time make the finding.
- **cleared by**: `boot`: the next boot. `driver`: a clearing line of the driver, or a successful reset. `person`:
  `muster clear`. `quiet for 1 h`: one hour without another such line. `muster clear` ends any finding.
- **source**: R: the tests or rules of the public project named, or public logs, contain this form of the line. K: the
  form comes from a print statement in the kernel or driver file named, and we have not seen it on real hardware.

A pattern must match at the beginning of a message, behind the times, levels and host names that tools print before it.
Text that a user chose, such as a mount option or the name of a process, comes later and cannot select a row
([security](security.md#what-a-tenant-can-write-into-the-kernel-log)).

No row of AMD, Intel and AWS was seen on real hardware by us. Their driver's own advice gives the class; where it gives
none, the class is contact. What an application may cause, such as a job that does not end, is a WARN. The lines of AWS
Neuron are WARNs because a pod can write them. Google publishes no kernel messages of Cloud TPUs, so there are no rows
for them.

To change a row or to add your own, write a YAML file and name it in the check's parameter `catalogue`. Your patterns
match at the beginning too, unless the row has `anywhere: true`. The format is that of
`checks/muster_checks/dmesg/catalogue/rows/kernel.yaml`.""".splitlines()


def cell(text: object) -> str:
    """``text`` as one cell of a Markdown table."""
    return str(text).replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    head = list(head)
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(cell(value) for value in row) + " |" for row in rows]


def clears(meaning: RowMeaning) -> str:
    if meaning.verdict is Verdict.WARN:
        return f"quiet for {meaning.quiet_s / 3600:g} h"
    return meaning.clears if meaning.verdict is Verdict.FAIL else ""


def kernel_log(catalogue: Catalogue) -> str:
    lines = [
        "# Kernel messages",
        "",
        NOTE,
        "",
        *INTRODUCTION,
        "",
        "## Patterns",
        "",
        *table(
            ("reason", "vendor", "verdict", "class", "when", "cleared by", "meaning", "source"),
            (
                (
                    row.name,
                    row.vendor,
                    row.verdict,
                    row.fault_class,
                    f"{row.count} in {row.window_s:g} s" if row.count > 1 else "each line",
                    clears(row),
                    row.description,
                    row.source,
                )
                for row in catalogue.rows
            ),
        ),
        "",
        "## Xid",
        "",
        "The verdict of some Xid depends on the rest of the line: 144 to 150 are decoded by NVIDIA's NVLink 5 table",
        "(rows/nvlink5.csv), 74 by its registers (rows/xid74.csv), and 154 by the recovery action that it names",
        "(rows/xid154.csv). A code that is not listed is a WARN.",
        "",
        *table(
            ("Xid", "name", "meaning", "verdict", "class", "cleared by", "source"),
            (
                (
                    row.code,
                    row.mnemonic,
                    row.description,
                    "decoded" if row.decode else row.verdict,
                    row.fault_class,
                    clears(row),
                    row.source,
                )
                for row in catalogue.xids.values()
            ),
        ),
        "",
        "## SXid (NVSwitch)",
        "",
        *table(
            ("SXid", "meaning", "verdict", "class", "if the line says Fatal", "cleared by", "source"),
            (
                (
                    row.code,
                    row.description,
                    row.verdict,
                    row.fault_class,
                    f"{row.verdict_if_fatal} {row.class_if_fatal}",
                    clears(row),
                    row.source,
                )
                for row in catalogue.sxids.values()
            ),
        ),
    ]
    return "\n".join(lines) + "\n"


# which test types a page's commands (tests/docs/command_list.py)
CHECKS_TYPED = "<!-- page typed by: tests/agent/query/test_documented_calls.py -->"
_AGENTS, _CALLS = "tests/cluster/commands/test_curl_commands.py", "tests/agent/query/test_documented_calls.py"
EXAMPLES_TYPED = {"iperf": f"<!-- typed by: {_AGENTS} (2), {_CALLS} -->"}  # of the check's examples, in order

CHECKS_INTRODUCTION = """\
Run checks on the node that you are logged in to:

<!-- typed by: tests/agent/checks/test_documented_commands.py -->
- `muster check`: all light checks
- `muster check NAME …`: these checks, light or heavy
- `muster check NAME --sample FILE`: judge the output of a tool that was recorded elsewhere

## How to read this page

The table lists every check. The section of a check has its parameters, and requests to an agent that you can copy.

A **verdict** is one of:

| verdict | meaning |
|---|---|
| PASS | no fault found |
| WARN | reported; never taints the node under the default [policy](policy.md) |
| FAIL | a fault; its class (`reset`, `reboot`, `replace` …) decides what the default policy does |
| UNKNOWN | could not be measured, e.g. because a tool is missing; taints nothing |
| SKIP | does not apply to this node, for example because it has no such device |

**Cost**: a light check may run beside a job. A heavy check uses the accelerators or the network, so an agent runs
it only on idle nodes.

**Tested on**: what a check has run on so far. A check that has only seen recorded output may misread real hardware. If
it does, please report it with the tool's output.

To add a check, see [Write a check](plugins.md). For the meaning of each kernel message, see
[kernel-log.md](kernel-log.md).

## All checks""".splitlines()

PEERS = ("NVSentinel", "Autopilot", "Konduktor", "NPD", "gcm", "gpud", "healthagent", "others")
NOT_A_CHECK = "plug-ins"


def checks() -> str:
    declared = sorted(load_registry(plug_ins=[]).values(), key=lambda check: check.name)
    lines = ["# The checks", "", NOTE, CHECKS_TYPED, "", *CHECKS_INTRODUCTION, ""]
    lines += table(
        ("check", "cost", "finds", "tested on"),
        ((f"[{each.name}](#{each.name})", each.cost, each.description, each.ran_on) for each in declared),
    )
    lines += ["", *peers({each.name for each in declared}), ""]
    for check in declared:
        lines += one_check(check)
    return "\n".join(lines)


def default_of(value: object) -> str:
    if value is None or value in ("", {}, []):
        return "not set"
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def one_check(check: Check) -> list[str]:
    runs = (
        f"every {check.period_s:g} s" if check.period_s else "on request" if check.probe else "all the time (a stream)"
    )
    lines = [f"## {check.name}", "", f"{check.description[:1].upper()}{check.description[1:]}.", ""]
    off = "" if check.enabled else f"; off by default: `checks.{check.name}.enabled=true` enables it"
    alone = f"; can test one device alone (`{check.one_device}`) while jobs use others" if check.one_device else ""
    lines += [f"- Cost: {check.cost}{alone}", f"- Runs: {runs}, with a timeout of {check.timeout_s:g} s{off}"]
    lines.append(f"- Devices: {', '.join(check.devices)}")
    lines += [f"- Reads: {check.reads}"] if check.reads else []
    lines += [f"- Tested on: {check.ran_on}"] if check.ran_on else []
    properties = check.parameters.model_json_schema(mode="serialization").get("properties", {})
    fields = check.parameters.model_fields
    rows = [
        (f"`{name}`", default_of(properties[name].get("default")), fields[name].description or "")
        for name in properties
    ]
    lines += ["", *table(("parameter", "default", "meaning"), rows)] if rows else []
    lines += ["", "Requests to an agent:"] if check.examples else []
    lines += ["", EXAMPLES_TYPED[check.name]] if check.name in EXAMPLES_TYPED else []
    return [*lines, "", *(f"    curl 'localhost:3333/status?{example}'" for example in check.examples), ""]


def peers(known: set[str]) -> list[str]:
    """Muster's checks beside those of other public systems. Raises SystemExit for a check that does not exist."""
    rows = yaml.safe_load((HERE / "peers.yaml").read_text())
    strangers = {name for row in rows for name in row["ours"]} - known - {NOT_A_CHECK}
    if strangers:
        sys.exit(f"docs/peers.yaml: no such check: {', '.join(sorted(strangers))}")
    ours = [", ".join(f"`{name}`" if name in known else name for name in row["ours"]) for row in rows]
    return [
        "## Beside other systems",
        "",
        "What each of these public systems checks, by its own names (as of 2026), and the check of Muster for it.",
        "",
        *table(
            ("what", "Muster", *PEERS),
            (
                (row["what"], named or f"- ({row['why']})", *(row["theirs"].get(peer, "") for peer in PEERS))
                for row, named in zip(rows, ours, strict=True)
            ),
        ),
    ]


# the chart's rights are rendered by helm, which goes by the schema that is written before
MAKERS: tuple[Callable[[], dict[Path, str]], ...] = (
    lambda: {HERE / "kernel-log.md": kernel_log(load_catalogue()), HERE / "checks.md": checks()},
    lambda: {CRDS / crd.FILE: crd.text()},
    reference.files,
    commands.commands_page,
    api.files,
    chart.files,
    lambda: {chart_rights.FILE: chart_rights.text()},
    dashboards.files,
    alerts.files,
    house.files,
    phases.files,
)


def main() -> int:
    stale = []
    for make in MAKERS:
        for file, text in make().items():
            if file.exists() and file.read_text() == text:
                continue
            stale.append(str(file.relative_to(HERE.parent)))
            if "--check" not in sys.argv:
                file.write_text(text)
    if stale and "--check" in sys.argv:
        print(f"stale: {', '.join(stale)}: run `make generate`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
