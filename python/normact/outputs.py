# SPDX-License-Identifier: Apache-2.0
"""Which outputs a call is asked for. What out= names and what is made is `_core.outputs`; `_core.finish` returns it."""

from __future__ import annotations

from typing import Literal

Wanted = tuple[bool, ...]  # of each result of a backward, whether anybody asked for it
#: Both statistics in one array, shape (2, ...), in the place of mean: who does not look at them need not have two made.
Joined = Literal["joined"]
JOINED: Joined = "joined"
ALL: Wanted = (True,) * 4
