"""Ages, durations and counts as text."""


def age(seconds: float) -> str:
    """``45s``, ``12m``, ``5h``, ``3d``: one unit, as in kubectl."""
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "m"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{max(0, int(seconds // unit))}{name}"
    return f"{int(seconds // 86_400)}d"


def format_duration(seconds: float) -> str:
    """``45s``, ``12m``, ``5h 3m``, ``3d 4h``."""
    whole = int(seconds)
    if whole < 120:
        return f"{whole}s"
    if whole < 7200:
        return f"{whole // 60}m"
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}h {minutes}m" if hours < 48 else f"{hours // 24}d {hours % 24}h"


def plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
