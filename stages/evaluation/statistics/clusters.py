"""Which scored items count as one observation, for every test of two models and of a model against chance.

Guarantee: the items of one task of a group (a subject of mmlu) are one cluster. Every other item is a cluster of its own, and so is a document
held out, whose tokens are summed before. Items of other tasks that share a passage are not known as such: nothing records which they are.
Cost: one pass over the items.
Source: Miller 2024, arXiv 2411.00640 (clustered errors): the error is that of a ratio of sums over clusters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

ItemMetrics = Mapping[tuple[str, str], Mapping[str, float]]
"""(task, metric) -> item -> value of this item."""
HOW = (
    "The items of one task of a group count as one observation, and so do the tokens of one document; all other items and pairs are taken as "
    "independent, because nothing records which of them share a passage."
)
"""What a reader of a table with such tests has to know."""


def sums(items: Sequence[str], metric: str, values: ItemMetrics, *columns: np.ndarray) -> tuple[np.ndarray, ...]:
    """Returns each column summed by cluster, the clusters in the order of their first items.

    Args:
        items: The items.
        metric: The main metric of their task.
        values: The values of a model that scored them.
        columns: [items] each.
    """
    import numpy as np

    clusters: dict[str, int] = {}
    number = [clusters.setdefault(_cluster(item, metric, values), len(clusters)) for item in items]
    return tuple(np.bincount(number, column, len(clusters)) for column in columns)


def _cluster(item: str, metric: str, values: ItemMetrics) -> str:
    """Returns the cluster of an item: of a group's item its task, else the item."""
    member, slash, one = item.partition("/")
    return member if slash and one in values.get((member, metric), {}) else item
