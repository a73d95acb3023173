"""Durations as people read them."""


def lasted(passed_s: float) -> str:
    """``45s``, ``12m``, ``5h 3m``, ``3d 4h``; 0s for a negative duration (the clock was set back)."""
    whole = max(0, int(passed_s))
    if whole < 120:
        return f"{whole}s"
    if whole < 7200:
        return f"{whole // 60}m"
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}h {minutes}m" if hours < 48 else f"{hours // 24}d {hours % 24}h"
