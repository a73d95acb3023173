"""Judges kernel lines by the catalogue: lines in, signs and all-clears out.

One value (``state``) contains everything that later verdicts depend on, so a restart in the middle of a flood or a
counting window changes nothing. A line brings its own time; no clock is read for it.
"""

import time
from collections.abc import Callable
from operator import itemgetter
from typing import Any, cast

import msgspec

from muster_checks.base.declaration import AllClear, Sign
from muster_checks.base.vocabulary import FaultClass, Origin, Verdict, shorten
from muster_checks.dmesg import decode
from muster_checks.dmesg.catalogue.match import Matcher
from muster_checks.dmesg.catalogue.templates import PART_CHARACTERS, bits_fit, clean_part, fill_template, template_names
from muster_checks.dmesg.catalogue.types import (
    COUNT_LIMIT,
    SXID_REASON,
    XID_REASON,
    Catalogue,
    PatternRow,
    RowMeaning,
    XidRow,
)
from muster_checks.dmesg.line_context import LineContext
from muster_checks.dmesg.message_text import MAY_HAVE_PREFIX, holds_user_text, message_start, split_record, strip_prefix
from muster_checks.dmesg.multi_line import RecentLines
from muster_checks.dmesg.node_disks import is_loop_device
from muster_checks.dmesg.open_findings import Event, OpenFinding, OpenFindings
from muster_checks.dmesg.sources.records import KernelLine
from muster_checks.dmesg.sources.source import JudgeCounts
from muster_checks.dmesg.windows import Dump, Windows

STATE_VERSION = 1
GPUS_LIMIT = 256  # number of GPUs whose UUID is stored
LINK_WINDOW_S = 7 * 86400.0  # for "more than 2 times on the same link": NVIDIA gives no time

_KINDS = {"nvidia-nvswitch": "nvswitch", "mlx5_core": "nic", "nvme": "disk"}
_KINDS |= dict.fromkeys(("nvidia", "amdgpu", "xe", "i915", "habanalabs"), "gpu")
_ADVICE = {
    FaultClass.RESTART_APP: "; restart the application",
    FaultClass.RESET: "; needs a reset",
    FaultClass.REBOOT: "; needs a reboot",
    FaultClass.REPLACE: "; needs replacement",
    FaultClass.CONTACT: "; needs a person to examine it",
}
_NVLINK5 = {
    "RESET_GPU": (Verdict.FAIL, FaultClass.RESET),
    "IGNORE": (Verdict.WARN, FaultClass.NONE),
    "XID_154_EVAL": (Verdict.WARN, FaultClass.RESTART_APP),
}
_RESET_FAILED = "GpuResetFailed"
_RESET_ENDS = ("GpuResetRequired", "GspHeartbeatTimeout", "GpuPmuHalted")  # their lines name no GPU


class RowContext(msgspec.Struct, frozen=True):
    at: float
    groups: dict[str, str]


class JudgeState(msgspec.Struct):
    """The value of :meth:`KernelLogJudge.state`: plain values, at most a few MB."""

    version: int
    open: list[OpenFinding]
    windows: Dump
    gpus: dict[str, str]  # address by UUID
    contexts: dict[str, RowContext]  # by row
    seen: dict[str, float]  # last match of each row that another row refers to by ``after``
    recent: list[str] = []  # the last lines, if a row spans several


def identity(component: str) -> str:
    return component


class KernelLogJudge:
    """``refuse_user``: leave out lines written from user space. ``names``: maps a component to its canonical name
    (device_names.py). ``of_node``: whether the process with this id and name is known to be one of the node itself, not
    of a pod. ``of_node_disk``: whether the node needs the disk with this name (node_disks.py). ``clock``: seconds since
    the epoch, on the same timeline as the lines."""

    def __init__(
        self,
        catalogue: Catalogue,
        *,
        refuse_user: bool = False,
        names: Callable[[str], str] = identity,
        of_node: Callable[[int, str], bool] = lambda _pid, _name: True,
        of_node_disk: Callable[[str], bool] = lambda disk: not is_loop_device(disk),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.counters = JudgeCounts()
        self._catalogue = catalogue
        self._refuse_user = refuse_user
        self._names = names
        self._of_node = of_node
        self._of_node_disk = of_node_disk
        self._clock = clock
        self._recent = RecentLines([row for row in catalogue.rows if row.lines])
        # a catalogue without codes is for a log other than the kernel's
        self._of_kernel = bool(catalogue.xids)
        self._reset_state()
        patterns: list[str] = []
        self._handlers: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._harmless: set[int] = set()  # patterns that neither make a FAIL nor end a finding

        def on(pattern: str, handler: Callable[..., None], *arguments: object, anywhere: bool = False) -> None:
            self._handlers.append((handler, (*arguments, len(patterns))))
            patterns.append(pattern if anywhere else f"^(?:{pattern})")

        # in the order in which the matches of one line are handled: patterns that name a device come before those that
        # need the name
        if catalogue.xids:
            on(decode.GPU_UUID, self._take_uuid)
            on(decode.XID, self._take_xids)
            on(decode.SXID, self._take_sxids)
        # another row may refer to a row that a user has switched off
        self._awaited = {row.after for row in catalogue.rows if row.after and row.verdict is not Verdict.PASS}
        rows = [row for row in catalogue.rows if row.verdict is not Verdict.PASS or row.name in self._awaited]
        rows = [row for row in rows if not row.lines]
        for row in rows:
            if row.context:
                on(row.context, self._take_context, row, anywhere=row.anywhere)
        for row in sorted(rows, key=lambda row: bool(row.after)):
            for pattern in row.patterns:
                if row.verdict is not Verdict.FAIL:
                    self._harmless.add(len(patterns))
                on(pattern, self._take_row, row, anywhere=row.anywhere)
        for row in rows:
            if row.clear_pattern:
                on(row.clear_pattern, self._take_clear, row, anywhere=row.anywhere)
        if catalogue.xids:
            on(decode.RESET_DONE, self._take_reset)
        self._matcher = Matcher(patterns, [MAY_HAVE_PREFIX] if self._of_kernel else [])

    def _reset_state(self) -> None:
        self._open = OpenFindings()
        self._windows = Windows()
        self._gpus: dict[str, str] = {}
        self._contexts: dict[str, RowContext] = {}
        self._last_seen: dict[str, float] = {}
        self._recent.load([])

    # ---- in and out ---------------------------------------------------------------------------------------------

    @property
    def interesting(self) -> Callable[[bytes], bool]:
        """Whether ``take`` may find something in a record with this text or one of its lines. True may be wrong, False
        never is. Takes about 1 us."""
        return (lambda _raw: True) if self._recent.wanted else self._matcher.interesting

    def take(self, line: KernelLine) -> list[Event]:
        """Judge one line. Never raises, whatever the line contains."""
        self.counters.judged += 1
        if self._refuse_user and line.origin is Origin.USER:
            self.counters.refused_user += 1
            return []
        texts = split_record(line.text) if self._of_kernel else [line.text]
        one = LineContext(line, min(line.at, self._clock()))
        hits = [hit for text in texts for hit in self._hits(text)]
        if "\n" in line.text and self._holds_user_text(strip_prefix(line.text)):
            # a firewall rule's prefix may end with a line break, so only the whole record shows whose words these are
            hits = [hit for hit in hits if hit[0] in self._harmless]
        for index, one.text in sorted(hits, key=itemgetter(0)):
            handler, arguments = self._handlers[index]
            handler(one, *arguments)
        if self._recent.wanted:
            for row, lines in self._recent.push(texts):
                if row.verdict is not Verdict.FAIL or not self._holds_user_text(texts[0]):
                    self._take_lines(one, row, lines)
        self.counters.forgotten = self._open.evicted
        return one.events

    def _hits(self, text: str) -> list[tuple[int, bytes]]:
        """The patterns that may fire for a message, or for one line of a message of several lines."""
        raw = text.encode("utf-8", "replace")
        if self._of_kernel and (start := message_start(raw)):
            raw = raw[start:]
        hits = self._matcher.which(raw)
        if not self._harmless.issuperset(hits) and self._holds_user_text(raw.decode()):
            hits = [index for index in hits if index in self._harmless]
        return [(index, raw) for index in hits]

    def _holds_user_text(self, text: str) -> bool:
        return self._of_kernel and holds_user_text(text)

    def tick(self, now: float) -> list[Event]:
        """The events due at ``now`` (epoch seconds): signs held back in a flood, and the end of quiet warnings."""
        return self._open.tick(now)

    def next_tick(self) -> float | None:
        """When ``tick`` may next return something; None: not before another line."""
        return self._open.next_tick()

    def forget(self, component: str, reasons: tuple[str, ...] = ()) -> None:
        """A person closed these findings (``*``: of every component; no reasons: any). Later signs open new findings,
        without the earlier worst verdict, and the counts for the component restart at 0."""
        self._open.forget(component, reasons)
        self._windows.forget(component, reasons)

    def state(self) -> JudgeState:
        """A copy of everything that later verdicts depend on."""
        return JudgeState(
            version=STATE_VERSION,
            open=self._open.dump(),
            windows=self._windows.dump(),
            gpus=dict(self._gpus),
            contexts=dict(self._contexts),
            seen=dict(self._last_seen),
            recent=self._recent.dump(),
        )

    def restore(self, state: object) -> str:
        """Continue from ``state``: a :class:`JudgeState`, or its decoded encoding.

        Returns an empty text on success, else the error; the judge then has no state.
        """
        self._reset_state()
        version = state.get("version") if isinstance(state, dict) else getattr(state, "version", None)
        if version != STATE_VERSION:
            return f"state has version {str(version)[:40]}; expected {STATE_VERSION}"
        try:
            taken = msgspec.convert(msgspec.to_builtins(state), JudgeState)
            self._open = OpenFindings.load(taken.open)
            self._windows = Windows.load(taken.windows, COUNT_LIMIT)
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
            self._reset_state()
            return f"cannot decode the state: {error}"
        rows = {row.name for row in self._catalogue.rows}
        self._gpus = dict(list(taken.gpus.items())[-GPUS_LIMIT:])
        self._contexts = {name: context for name, context in taken.contexts.items() if name in rows}
        self._last_seen = {name: at for name, at in taken.seen.items() if name in rows}
        self._recent.load(taken.recent)
        return ""

    # ---- NVIDIA's own lines -------------------------------------------------------------------------------------

    def _take_uuid(self, one: LineContext, _index: int) -> None:
        for uuid, address in decode.decode_gpu_uuids(one.text):
            self._gpus.pop(uuid, None)
            self._gpus[uuid] = address
            if len(self._gpus) > GPUS_LIMIT:
                del self._gpus[next(iter(self._gpus))]

    def _take_xids(self, one: LineContext, _index: int) -> None:
        for xid in decode.decode_xids(one.text):
            row = self._catalogue.xid(xid.code)
            component = self._names(f"gpu/{xid.address}")
            reason = f"{XID_REASON}{xid.code}"
            if row.cancels:
                self._clear(one, component, tuple(f"{XID_REASON}{code}" for code in row.cancels))
            prefix = f"Xid {xid.code} on {component}: "
            if row.decode == "recovery":
                self._take_recovery(one, component, reason, row, decode.decode_recovery_action(xid.rest))
            elif row.decode == "xid74":
                verdict, fault_class, what = self._judge_link(one, component, row, xid.rest)
                self._raise(one, component, reason, verdict, fault_class, prefix + what, row.quiet_s)
            elif row.decode == "nvlink5":
                found = decode.decode_nvlink5(xid.code, xid.rest, self._catalogue.nvlink5)
                # if no row matches, only the line's own word gives the severity
                undecoded = (Verdict.FAIL, FaultClass.CONTACT) if found.fatal else (Verdict.WARN, FaultClass.NONE)
                verdict, fault_class = _NVLINK5.get(found.action, undecoded)
                what = f"{row.description} in {found.unit or 'an unnamed unit'}, {found.action or 'not decoded'}"
                name = f"{reason}:{found.unit[:40]}" if found.unit else reason
                self._raise(one, component, name, verdict, fault_class, prefix + what, row.quiet_s)
            else:
                self._raise(one, component, reason, row.verdict, row.fault_class, prefix + row.description, row.quiet_s)

    def _take_recovery(self, one: LineContext, component: str, reason: str, row: XidRow, action: str) -> None:
        recovery: RowMeaning = self._catalogue.recoveries.get(action.lower(), row)
        if recovery.verdict is Verdict.PASS:
            self._clear(one, component, (reason,))
            return
        message = f"Xid 154 on {component}: the driver requests recovery: {action or 'an unreadable action'}"
        self._raise(one, component, reason, recovery.verdict, recovery.fault_class, message, row.quiet_s)

    def _judge_link(self, one: LineContext, component: str, row: XidRow, rest: str) -> tuple[Verdict, FaultClass, str]:
        error = decode.decode_link_error(rest, self._catalogue.link_bits)
        if error is None or error.unlisted or not error.bits:
            where = "" if error is None else f" on link {error.link}"
            return row.verdict, row.fault_class, f"{row.description}{where}, not decoded"
        worst: tuple[bool, bool, FaultClass, str] | None = None
        for bit in error.bits:
            enough = bit.min_count == 1 or self._add(
                one,
                f"Xid74/{error.link}/{bit.register}/{bit.bit}",
                component,
                count=bit.min_count,
                window_s=LINK_WINDOW_S,
            )
            fails = bit.verdict is Verdict.FAIL and enough
            # a bit that needs a person outranks one for which a reset may help
            candidate = fails, bit.fault_class is FaultClass.CONTACT, bit.fault_class, bit.meaning
            if worst is None or candidate[:2] > worst[:2]:
                worst = candidate
        fails, _, fault_class, meaning = cast("tuple[bool, bool, FaultClass, str]", worst)
        return Verdict.FAIL if fails else Verdict.WARN, fault_class, f"{meaning}, link {error.link}"

    def _take_sxids(self, one: LineContext, _index: int) -> None:
        for sxid in decode.decode_sxids(one.text):
            row = self._catalogue.sxid(sxid.code)
            component = self._names(f"nvswitch/{sxid.address}")
            reason = f"{SXID_REASON}{sxid.code}"
            if sxid.follows:
                if row.verdict is Verdict.PASS or self._open.is_open(component, reason):
                    continue
                verdict, fault_class = Verdict.WARN, FaultClass.NONE  # details of a line that is missing
            elif sxid.fatal:
                verdict, fault_class = row.verdict_if_fatal, row.class_if_fatal
            else:
                verdict, fault_class = row.verdict, row.fault_class
            what = row.description if row.code == sxid.code else sxid.text or row.description
            link = "" if sxid.link is None else f", link {sxid.link}"
            self._raise(
                one,
                component,
                reason,
                verdict,
                fault_class,
                f"SXid {sxid.code} on {component}: {what}{link}",
                row.quiet_s,
            )

    def _take_reset(self, one: LineContext, _index: int) -> None:
        for uuid in decode.decode_resets(one.text):
            if ended := tuple(reason for reason in _RESET_ENDS if self._open.is_open("host", reason)):
                self._clear(one, "host", ended)
            address = self._gpus.get(uuid)
            failed_as = self._names(f"gpu/{address or clean_part(uuid)}")
            if self._open.is_open(failed_as, _RESET_FAILED):
                self._clear(one, failed_as, (_RESET_FAILED,))
            if address is None:
                self.counters.unknown_gpus += 1
                continue
            done = AllClear(
                component=self._names(f"gpu/{address}"),
                at=one.at,
                how="driver",
                classes=(FaultClass.RESET,),
                line=one.whole,
            )
            one.events += self._open.clear(done)

    # ---- rows of the YAML files, shipped and users' -------------------------------------------------------------

    def _take_context(self, one: LineContext, row: PatternRow, index: int) -> None:
        groups = {name: text[:PART_CHARACTERS] for name, text in self._matcher.groups(index, one.text).items()}
        self._contexts[row.name] = RowContext(one.at, groups)

    def _take_row(self, one: LineContext, row: PatternRow, index: int) -> None:
        if one.has_reported(row):
            return  # another of its patterns matched
        groups = self._matcher.groups(index, one.text)
        if not bits_fit(row, groups) or one.line.uptime_s < row.delay_s:
            return
        if row.node_process and not self._names_process_of_node(one, groups):
            return
        if row.node_disk and "disk" in groups and not self._of_node_disk(groups["disk"]):
            return
        one.rows[row.name] = row.verdict
        if row.name in self._awaited:
            self._last_seen[row.name] = one.at
        if row.after and not 0 <= one.at - self._last_seen.get(row.after, float("-inf")) <= row.after_s:
            return
        context = self._contexts.get(row.name)
        if context is not None and 0 <= one.at - context.at <= row.context_s:
            groups = {**context.groups, **groups}
        component = self._component(row, groups)
        if any(self._open.is_open(component, reason) for reason in row.covered_by):
            self.counters.covered += 1
            return
        lines, count = 1, row.count
        if row.window_s:
            kept = row.count if row.count > 1 else COUNT_LIMIT
            weight = groups.get("n", "")[:9]  # int() raises for thousands of digits
            lines = max(1, min(int(weight), kept)) if weight.isascii() and weight.isdigit() else 1
            enough = self._add(one, row.name, component, count=kept, window_s=row.window_s, lines=lines)
            if row.count == 1:
                count = max(lines, self._windows.number(row.name, component, one.at, window_s=row.window_s))
            elif not enough:
                return
            elif not self._open.is_open(component, row.name):
                lines = row.count  # all lines counted so far
        message = fill_template(row.message, {"line": one.line.text, **groups, "count": str(count)})
        where = "" if component == "host" else f" on {component}"
        self._raise(one, component, row.name, row.verdict, row.fault_class, message + where, row.quiet_s, lines)

    def _add(self, one: LineContext, row: str, component: str, *, count: int, window_s: float, lines: int = 1) -> bool:
        """Whether there are ``count`` lines within ``window_s`` now. Lines without a time are not added up: they may
        have been written on different days."""
        if not one.line.timed:
            return lines >= count
        return self._windows.add(row, component, one.at, count=count, window_s=window_s, lines=lines)

    def _names_process_of_node(self, one: LineContext, groups: dict[str, str]) -> bool:
        """Whether the process that the row selected by its name has this name rightly. Any tenant may give the name to
        its own process; but only root writes a line from user space."""
        pid = groups.get("pid", "")
        return one.line.origin is Origin.USER or (0 < len(pid) < 10 and self._of_node(int(pid), groups.get("task", "")))

    def _take_lines(self, one: LineContext, row: PatternRow, lines: str) -> None:
        """The last lines end in a match of ``row``; ``lines``: those that the match spans."""
        if one.has_reported(row) or one.line.uptime_s < row.delay_s:
            return
        one.rows[row.name] = row.verdict
        message = fill_template(row.message, {"line": lines})
        self._raise(one, row.component, row.name, row.verdict, row.fault_class, message, row.quiet_s)

    def _take_clear(self, one: LineContext, row: PatternRow, index: int) -> None:
        self._clear(one, self._component(row, self._matcher.groups(index, one.text)), (row.name,))

    def _component(self, row: PatternRow, groups: dict[str, str]) -> str:
        """The component template filled with the groups; ``host`` if a group is missing."""
        parts = {name: clean_part(text) for name, text in groups.items()}
        if "bdf" in parts:
            parts["bdf"] = decode.decode_pci_address(parts["bdf"]) or ""
        if "uuid" in parts:
            parts["bdf"] = self._gpus.get(groups["uuid"], parts["uuid"])
        if "driver" in parts:
            parts["kind"] = _KINDS.get(parts["driver"].rstrip("0123456789"), _KINDS.get(parts["driver"], "pci"))
        if not all(parts.get(name) for name in template_names(row.component)):
            return "host"
        return self._names(fill_template(row.component, parts))

    # ---- output ------- ------------------------------------------------------------------------------------------

    def _clear(self, one: LineContext, component: str, reasons: tuple[str, ...]) -> None:
        cleared = AllClear(component=component, at=one.at, how="driver", reasons=reasons, line=one.whole)
        one.events += self._open.clear(cleared)

    def _raise(
        self,
        one: LineContext,
        component: str,
        reason: str,
        verdict: Verdict,
        fault_class: FaultClass,
        message: str,
        quiet_s: float,
        lines: int = 1,
    ) -> None:
        if verdict is Verdict.PASS:
            return
        if verdict is Verdict.WARN and self._clock() - one.at > quiet_s:
            self.counters.stale += 1  # already over
            return
        self.counters.signs += lines
        if self._open.count_more(component, reason, verdict, fault_class, one.at, one.line.origin, lines):
            return
        sign = Sign(
            component=component,
            reason=reason,
            verdict=verdict,
            message=shorten(message + _ADVICE.get(fault_class, "")),
            at=one.at,
            fault_class=fault_class,
            count=lines,
            origin=one.line.origin,
            line=one.whole,
        )
        one.events += self._open.take(sign, quiet_s)
