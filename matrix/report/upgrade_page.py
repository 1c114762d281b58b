"""The page on which two stacks are compared, with the upgrade map."""

from __future__ import annotations

from collections import Counter
from typing import Final

from matrix.check.stack import AXES
from matrix.check.table import CHOSEN
from matrix.report.document import document
from matrix.report.stack_map import MEANS, StackMap
from matrix.store.night import Night

# The fields of a stack, and their labels.
FIELDS: Final = {axis: "container, or torch" if axis == "base" else AXES[axis] for axis in CHOSEN}


def upgrade_page(map: StackMap, night: Night | None = None) -> str:
    """Return the page. With a night it is the first page of a site: it also lists the failures and the data."""
    counts = Counter(record.verdict for record in night.records) if night else {}
    return document("upgrade.html.j2", axes=FIELDS, map=map, means=MEANS, night=night, counts=counts)
