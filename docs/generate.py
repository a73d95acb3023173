"""Makes the reference pages from the code, so that they cannot differ from it. `--check`: fail where one is stale."""

import sys
from collections.abc import Iterable
from pathlib import Path

from muster_checks.dmesg.catalogue import Catalogue, Meaning, load_catalogue
from muster_checks.registry import registry
from muster_checks.vocabulary import Verdict

HERE = Path(__file__).parent
NOTE = "<!-- made by `make generate`; edits are overwritten -->"


INTRODUCTION = """\
The check `dmesg` judges each kernel line by these tables. A FAIL of class reset, reboot, replace or contact
taints the node under the default [policy](policy.md); a WARN never does. Your own rows, or changes to these, go into
a YAML file named by the check's parameter `catalogue`; its form is that of
`checks/muster_checks/dmesg/rows/kernel.yaml`.

Source: R stands in a public project's tests or rules; K is the kernel's own print statement, not seen on real hardware
by us. Cleared by: `boot` a new boot, `driver` the driver's own clearing line or a reset, `person` `muster clear`. A
person's word closes anything.""".splitlines()


def cell(text: object) -> str:
    """``text`` as one cell of a Markdown table."""
    return str(text).replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    head = list(head)
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(cell(value) for value in row) + " |" for row in rows]


def clears(meaning: Meaning) -> str:
    if meaning.verdict is Verdict.WARN:
        return f"quiet for {meaning.quiet_s / 3600:g} h"
    return meaning.clears if meaning.verdict is Verdict.FAIL else ""


def kernel_log(catalogue: Catalogue) -> str:
    lines = [
        "# What Muster knows of kernel messages",
        "",
        NOTE,
        "",
        *INTRODUCTION,
        "",
        "## Patterns",
        "",
        *table(
            ("reason", "verdict", "class", "when", "cleared by", "meaning", "source"),
            (
                (
                    row.name,
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
        "144 to 150 are decoded by NVIDIA's NVLink 5 table (rows/nvlink5.csv), 74 by its registers (rows/xid74.csv),",
        "154 by the action it names (rows/xid154.csv). A code that is not listed is a WARN.",
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


def checks() -> str:
    lines = ["# The checks", "", NOTE, ""]
    for check in sorted(registry().values(), key=lambda check: check.name):
        rhythm = "a stream, always on" if check.period_s is None else f"every {check.period_s:g} s"
        lines += [f"## {check.name}", "", f"{check.description}.", "", f"Cost: {check.cost}. {rhythm.capitalize()}."]
        lines += [f"Time-out: {check.timeout_s:g} s. Looks at: {', '.join(check.devices)}.", ""]
        properties = check.parameters.model_json_schema(mode="serialization")["properties"]
        fields = check.parameters.model_fields
        lines += table(
            ("parameter", "default", "meaning"),
            (
                (f"`{name}`", f"`{properties[name].get('default')}`", fields[name].description or "")
                for name in properties
            ),
        )
        lines += ["", *(f"    curl 'localhost:3333/status?{example}'" for example in check.examples), ""]
    return "\n".join(lines)


def main() -> int:
    pages = {"kernel-log.md": kernel_log(load_catalogue()), "checks.md": checks()}
    stale = []
    for name, text in pages.items():
        page = HERE / name
        if page.exists() and page.read_text() == text:
            continue
        stale.append(name)
        if "--check" not in sys.argv:
            page.write_text(text)
    if stale and "--check" in sys.argv:
        print(f"stale: docs/{', docs/'.join(stale)}: run `make generate`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
