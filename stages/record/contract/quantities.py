"""Durations, sizes and amounts of computation as text with a unit, for people, and the time that work still takes.

Guarantee: three to four digits; the exact figures are in the records.
"""

from __future__ import annotations

FLOP_UNITS = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP", "ZFLOP", "YFLOP")


def size_text(count: float) -> str:
    """Returns a number of bytes in a readable unit (bytes, KB to PB; powers of 1000)."""
    for unit in ("bytes", "KB", "MB", "GB", "TB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} PB"


def duration_text(seconds: float) -> str:
    """Returns a duration in seconds as text in two units: "12.3 s", "4 min 5 s", "3 h 2 min", "2 d 5 h"."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s"
    units = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))
    size, unit, part, name = next(entry for entry in units if whole >= entry[0])
    return f"{whole // size} {unit} {whole % size // part} {name}"


def left_s(elapsed_s: float, share: float) -> float:
    """Returns the seconds that work still takes at its rate so far. share: how much of it is done, above 0 and at most 1."""
    return elapsed_s * (1 / share - 1)


def about_text(seconds: float) -> str:
    """Returns an expected duration as text in one unit: "less than a minute", "about 6 min", "about 5 h", "about 12 d"."""
    if seconds < 60:
        return "less than a minute"
    size, unit = (86400, "d") if seconds >= 1.5 * 86400 else (3600, "h") if seconds >= 1.5 * 3600 else (60, "min")
    return f"about {round(seconds / size):,} {unit}"


def flops_text(count: float) -> str:
    """Returns a number of floating-point operations in a readable unit, such as "11.6 PFLOP"."""
    power = 0
    while count >= 1000 and power < len(FLOP_UNITS) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.3g} {FLOP_UNITS[power]}"
