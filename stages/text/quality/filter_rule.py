"""What a rule of the filter is: a stored signal, a threshold of the recipe, and the reason that a broken rule gives.

A rule is one object. The recipe's settings, the decisions of the filter stage, `loam what-if` and the table in the README are made from
the same list of them (stages/text/quality/rules.py), so that one new entry there is all that a new rule needs.
Guarantee: a verdict is a function of stored signals and settings alone. A signal without a value (None) is neither above nor below a
threshold. Cost: some microseconds per document for forty rules; rules that are off cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Signals = Mapping[str, Any]
"""The signals of one document by name, its `url` among them."""
Settings = Mapping[str, Any]
"""A filter section of a recipe, as plain values."""


@dataclass(frozen=True)
class Signal:
    """A value that is stored for every document, whatever its verdict: a column of decisions/.

    Attributes:
        name: Name of the column. "{n}" in it stands for each n of the setting `per`.
        dtype: Short type of the column, as in stages/core/tables/parquet.py.
        unit: What one of it is.
        meaning: What is measured, as a phrase.
        source: Where the definition comes from.
        per: Dotted name of the setting whose keys are the n of a signal that exists once per n.
        measure: Gives the value from the repaired text alone. None for signals that are computed together (stages/text/quality/signals.py)
            or by the part of the filter that they belong to.
    """

    name: str
    dtype: str
    unit: str
    meaning: str
    source: str
    per: str = ""
    measure: Callable[[str], Any] | None = None


@dataclass(frozen=True)
class Threshold:
    """A setting of the recipe that one or more rules compare a signal with.

    Attributes:
        name: Key in the section of the rule.
        kind: Type and limits, as an annotation that pydantic reads.
        default: Value where the recipe gives none.
        unit: What one of it is.
        help: What the setting is, as a sentence.
        source: Where the default comes from.
    """

    name: str
    kind: Any
    default: Any
    unit: str
    help: str
    source: str

    @property
    def description(self) -> str:
        """The help text of the setting, with unit and source."""
        return f"{self.help} Unit: {self.unit}. Source: {self.source}."


@dataclass(frozen=True)
class Rule:
    """One reason to drop a document.

    Attributes:
        section: Section of the recipe below `filter`; "" for the filter's own keys. A section with `enabled: false` is left out.
        reason: What a document that breaks the rule is dropped for; the section stands before it ("gopher_quality.short_doc").
        signal: What is looked at.
        breaks: Whether a value of the signal breaks the rule, given the value of the threshold (or `constant`).
        threshold: The setting; null, false and an empty list leave the rule out. None for a rule without a setting.
        constant: What stands for the threshold in a rule without one.
        always: Whether the rule holds where its section is off.
        no_later_than: Name of another signal that must have no smaller value: of two phrases the first to come names the reason.
    """

    section: str
    reason: str
    signal: Signal
    breaks: Callable[[Any, Any], bool]
    threshold: Threshold | None = None
    constant: Any = None
    always: bool = False
    no_later_than: str = ""

    @property
    def full_reason(self) -> str:
        """The reason as it is recorded."""
        return _dotted(self.section, self.reason)

    @property
    def setting(self) -> str:
        """Dotted name of the threshold in the filter's section; "" without one."""
        return _dotted(self.section, self.threshold.name) if self.threshold else ""


@dataclass(frozen=True, slots=True)
class AppliedRule:
    """A rule under given settings: the name of one column, and the value to compare it with."""

    signal: str
    breaks: Callable[[Any, Any], bool]
    limit: Any
    reason: str
    no_later_than: str


def above(value: Any, limit: Any) -> bool:
    """Whether there is a value and it is larger."""
    return value is not None and bool(value > limit)


def below(value: Any, limit: Any) -> bool:
    """Whether there is a value and it is smaller."""
    return value is not None and bool(value < limit)


def at_least(value: Any, limit: Any) -> bool:
    """Whether there is a value and it is as large or larger."""
    return value is not None and bool(value >= limit)


def equals(value: Any, limit: Any) -> bool:
    """Whether the value is the limit."""
    return bool(value == limit)


def outside(value: Any, limit: Any) -> bool:
    """Whether the value is none of the limit's."""
    return value not in limit


def present(value: Any, limit: Any) -> bool:
    """Whether there is a value at all."""
    return value is not None


def applied(rules: Sequence[Rule], settings: Settings) -> tuple[AppliedRule, ...]:
    """The rules that are on, in order; one that exists once per n becomes one rule per n, by rising n."""
    return tuple(one for rule in rules if rule.always or _on(rule, settings) for one in _apply(rule, settings))


def first_reason(signals: Signals, rules: Sequence[AppliedRule]) -> str:
    """The reason of the first rule that a document breaks, such as "gopher_quality.short_doc"; "" when it is kept."""
    for rule in rules:
        value = signals[rule.signal]
        if rule.breaks(value, rule.limit):
            other = signals[rule.no_later_than] if rule.no_later_than else None
            if other is None or value <= other:
                return rule.reason
    return ""


def thresholds(rules: Sequence[Rule], section: str) -> list[Threshold]:
    """The settings that the rules of a section need, in order, each once."""
    return list({rule.threshold.name: rule.threshold for rule in rules if rule.threshold and rule.section == section}.values())


def impossible(rules: Sequence[Rule], section: str, values: Settings) -> str:
    """Why no document can pass a section whose least is more than its most; "" where one can. values: those of the section."""
    for low in rules:
        for high in rules:
            if low.breaks is below and high.breaks is above and low.section == high.section == section and low.signal == high.signal:
                least, most = (values[rule.threshold.name] if rule.threshold else None for rule in (low, high))
                if least is not None and most is not None and least > most and low.threshold and high.threshold:
                    return f"{low.threshold.name} is {least}, more than {high.threshold.name} {most}, so every document would be dropped"
    return ""


def dtypes(signals: Sequence[Signal], settings: Settings) -> dict[str, str]:
    """Column -> short type; a signal that exists once per n has a column for each n of its setting."""
    return {name: signal.dtype for signal in signals for name in _columns(signal, settings)}


def changes(before: Settings, after: Settings, whole: frozenset[str], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(dotted name, old, new) of every setting that differs. whole: mappings that are one setting, not a section."""
    for key in sorted({*before, *after}):
        old, new, name = before.get(key), after.get(key), f"{prefix}{key}"
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping) and name not in whole:
            yield from changes(old, new, whole, f"{name}.")
        else:
            yield name, old, new


def _dotted(section: str, name: str) -> str:
    return f"{section}.{name}" if section else name


def _on(rule: Rule, settings: Settings) -> bool:
    return bool(settings[rule.section].get("enabled", True)) if rule.section else True


def _apply(rule: Rule, settings: Settings) -> Iterator[AppliedRule]:
    section = settings[rule.section] if rule.section else settings
    limit = section[rule.threshold.name] if rule.threshold else rule.constant
    if rule.threshold and (limit is None or limit is False or (isinstance(limit, list | tuple) and not limit)):
        return
    if not rule.signal.per:
        yield AppliedRule(rule.signal.name, rule.breaks, limit, rule.full_reason, rule.no_later_than)
        return
    for n in sorted(map(int, limit)):
        value = limit[n] if n in limit else limit[str(n)]  # keys are strings in plain values that came from JSON
        yield AppliedRule(rule.signal.name.format(n=n), rule.breaks, value, rule.full_reason.format(n=n), rule.no_later_than)


def _columns(signal: Signal, settings: Settings) -> list[str]:
    if not signal.per:
        return [signal.name]
    section, _, name = signal.per.partition(".")
    return [signal.name.format(n=n) for n in sorted(map(int, settings[section][name]))]
