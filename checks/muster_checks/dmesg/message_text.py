"""Tells the kernel's own words in a message from text that a user chose.

A pattern matches at the beginning of a message, because there the driver prints its own prefix. This module finds that
beginning behind the prefixes that tools add, and it knows the few messages that begin with, or quote, a user's text:
the name of a process (at most 15 bytes), a file name, a mount option, the prefix of a firewall rule.
"""

import re

from muster_checks.dmesg.catalogue.match import Pattern

_DATE_TIME = (
    r"(?:[A-Za-z\x80-\xff]{2,9}\.?,? {1,2}|\d[\d/.\x80-\xff-]{0,9}(?:T| {1,2})){0,5}"  # Thu 20 Nov 2025, 2025-11-20T
    r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?(?:Z|[+-]\d\d:?\d\d)| [A-Z]{3,5}(?= ))?(?: \d{4}(?=[\] ]))?"
)
_FACILITIES = "(?:kern|user|mail|daemon|auth|authpriv|syslog|lpr|news|uucp|cron|ftp|local[0-7]) *:"
_PREFIX = re.compile(
    rb"[\s>]{0,3}(?:(?:"
    + (
        r"<\d{1,3}>(?:1 (?=\d{4}-))?"  # a priority; RFC 5424 puts its version after it
        r"|" + _FACILITIES + r"(?:emerg|alert|crit|err|warn|notice|info|debug) *:"  # dmesg -x
        r"|\[ *\d{1,12}(?:\.\d{1,9})?(?: <[ +\d.]*>)?\]"  # seconds since boot, dmesg -d
        r"|\[ *[TC]\d{1,10}\]"  # the caller's id (CONFIG_PRINTK_CALLER)
        r"|\[ *\+ *\d{1,9}\.\d{1,9}\]|\[[A-Z][a-z]{2} ?\d{1,2} \d\d:\d\d\]"  # dmesg -e and -H
        r"|\[" + _DATE_TIME + r"(?: <[ +\d.]*>)?\]|" + _DATE_TIME + r"(?= )"
        r"|\d{9,11}\.\d{1,9}(?= )"  # journalctl -o short-unix
        r"|\[pod/[^\]\s]{1,500}\]"  # kubectl logs --prefix
        r"|MESSAGE="  # journalctl -o export
    ).encode()
    + rb")[ \t]{0,3})*"
    rb"(?:(?:(?<=[ \]])\S{1,255} )?(?:kern\.\w{1,8} )?kernel(?:\[\d{1,10}\])?(?:: ?| - - - )"
    rb"(?:\[ *\d{1,12}\.\d{1,9}\] ?)?(?:\[ *[TC]\d{1,10}\] ?)?)?[ \t]{0,3}"
)
# A pattern for all lines that may begin with such a prefix, and for more: a cheap test before the exact one.
MAY_HAVE_PREFIX = (
    r"^(?:[^\S\n]|[>\[<]|MESSAGE=|kern(?:el)?[\[ .:-]|"
    + _FACILITIES
    + r"|\d{9,11}\.|(?:[\w., T/-]*[ T])?\d\d:\d\d:\d\d)"
)


def message_start(text: bytes, start: int = 0) -> int:
    """The offset of the message behind the prefixes of a printed log: times, levels, host and writer.

    start: offset behind prefixes that are known already. At most three blanks are skipped: more of them indent a
    further line of a message.
    """
    return _PREFIX.match(text, start).end()  # type: ignore[union-attr]  # it matches every text


# Programs in user space whose own lines have rows.
_DAEMON = re.compile(
    r"(?:(?:nvsentinel-gpu-reset|root)\[\d+\]: GPU reset |(?:nv|nvidia)-fabricmanager\[\d+\]: (?!segfault))"
)
# RE2, because a user chooses the text: its time is linear for every text.
_USER_TEXT = Pattern(
    r"(?s)\A(?:"
    # the name of a process, before anything else: "NVRM: Xid[12]: segfault at ...". No driver's prefix looks like it.
    r".{1,16}?\[\d{1,10}\]:? |.{1,16}? ?\(\d{1,10}\): |.{1,16}?/\d{1,10}: "
    r"|.{1,16}?: (?:page allocation (?:failure|stalls)|vmalloc(?: error)?: )"  # warn_alloc of mm/page_alloc.c
    # netfilter's LOG: the rule's prefix, then the packet; longer than the name of a process in a driver's line
    r"|.*IN=\S* OUT=\S*(?:\s|\z)"
    r"|.*: Can't (?:open blockdev|lookup blockdev|mount, )"  # the source of a mount; fs/super.c, from 5.1
    # messages of the kernel that quote a user's text
    r"|traps: |audit: |audit\(|process '|warning: (?:process )?`|oom-kill:|.{1,16} invoked oom-killer"
    r"|NVRM: API mismatch: |request_module: |ptrace |netlink: |x_tables: |xt_\w+: |\S+ filesystem being "
    r"|(?:CIFS|cifs|9pnet\w*|libceph|ceph|SELinux|Lockdown|UDF-fs|debugfs|sysfs|kobject\w*): "
    r"|Memory cgroup stats for |Task in |proc_dir_entry |Loading kernel module |memfd_create"
    r"|[\w+-]+(?: \w+)? ?\([^)]{1,64}\): (?:[Uu]nrecognized|[Uu]nknown|[Ii]nvalid|codepage) "
    r"|BTRFS(?: \w+)?(?: \([^)]{1,64}\))?: (?:device |duplicate device |unrecognized |')"
    r"|EXT4-fs \([^)]{1,64}\): (?:mounted |re-mounted|(?:initial|last) error |error: could not |Cannot find )"
    # the name of another node, and of its device, which a disk image holds
    r"|EXT4-fs warning \([^)]{1,64}\): (?:ext4_multi_mount_protect|dump_mmp_msg):"
    r"|nvme \w+: (?:new ctrl: |Connect )"  # the name of an NVMe subsystem
    r"|usb \S+: |input: |hid-generic |device-mapper: |Unknown kernel command line parameters"
    r"|[\w.-]+: (?:Unknown |unknown |unrecognized |Bad value for |Duplicate |Invalid |invalid )"
    r"|(?:tmpfs|ramfs|fuse|overlay|overlayfs|proc|sysfs|devpts|cgroup2?|bpf|mqueue|binder): "
    r"|\[ *\d+\] +\d+ +\d+ "  # a line of the table of processes before an OOM kill
    r")"
)


def holds_user_text(text: str) -> bool:
    """Whether the message begins with, or quotes, text of any length that a user may choose."""
    return _DAEMON.match(text) is None and _USER_TEXT.search(text.encode("utf-8", "replace")) is not None


# Messages that begin with the name of a network interface, or of another object that a user may name. The kernel allows
# no blank, colon or slash in an interface's name. Its state, or the words that net/core, bonding, team, bridge and ipv6
# write after it, tell it from a driver's name. "server" of nfs and lockd comes before the name of a host.
_NAMED_BY_USER = re.compile(
    r"(?:[^\s:/]{1,15}|\(unnamed net_device\))"
    r"(?: \((?:uninitialized|unregistering|unregistered|released|dummy|unknown)\): "
    r"|: (?:option |Mode |Failed to change to mode |Ignoring invalid |Unable to set |Invalid MTU |renamed from "
    r"|entered |left |port \d|Port device |\(slave |[Ee]nslaving |link becomes ready|link status |received packet "
    r"|Caught tx_queue_len |hw csum failure|authenticate with |server ))"
)
_NAMED_BY_DRIVER = re.compile(r"[^\s:]+:? +\S")


def starts_with_driver_name(text: str) -> bool:
    """Whether a driver's name comes first, not that of an object which a user may choose, as of a network interface."""
    return _NAMED_BY_DRIVER.match(text) is not None and _NAMED_BY_USER.match(text) is None


# First lines of messages that a driver prints as one record of several lines. Each ends where the kernel's own words
# end, so no user's text can have put a line break there. A process's name is too short to hold a forged line.
_SEVERAL_LINES = re.compile(
    r"NVRM: The NVIDIA GPU [\da-fA-F:.]+(?: \(PCI ID: [\da-fA-F:]+\))?\s*\Z"
    r"|NVRM: Xid \((?:PCI:)?[\da-fA-F:.]+\): \d+\s*\Z"
    r"|NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\s*\Z"
    r"|(?:NMI )?(?:watchdog: )?BUG: soft lockup - CPU#\d+ stuck for \d+s! \[[^\n]{1,15}:\d+\]\s*\Z"
    r"|(?:Memory cgroup o|O)ut of memory: Kill(?:ed)? process \d+ \([^\n]{1,15}\) score \d+ or sacrifice child\s*\Z"
)


def has_further_lines(first: str) -> bool:
    """Whether the lines that follow ``first`` in its record are the driver's own.

    In any other record a line break may come from a user's text, and what follows it is not a message.
    """
    return _SEVERAL_LINES.match(first) is not None


def split_record(text: str) -> list[str]:
    """The lines of a record that may be judged: the first, and further ones if they are the driver's own."""
    if "\n" not in text:
        return [text]
    first, *further = text.split("\n")
    return [first, *(line.lstrip() for line in further)] if has_further_lines(strip_prefix(first)) else [first]


def strip_prefix(text: str) -> str:
    raw = text.encode("utf-8", "replace")
    start = message_start(raw)
    return raw[start:].decode("utf-8", "replace") if start else text
