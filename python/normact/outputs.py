# SPDX-License-Identifier: Apache-2.0
"""Which outputs a call is asked for. What out= names and what is made is `_core.outputs`; `_core.finish` returns it."""

from __future__ import annotations

import enum

Wanted = tuple[bool, ...]  # of each result of a backward, whether anybody asked for it
ALL: Wanted = (True,) * 4


class Joined(enum.Enum):
    """Both statistics in one array, shape (2, ...), in the place of mean: where nobody looks at them, one is enough.

    The forwards of batch, group and instance norm take the mark for return_stats, all backwards for rstd.
    """

    JOINED = "joined"


JOINED = Joined.JOINED
