# SPDX-License-Identifier: Apache-2.0
"""The argument `out` of every function: what it names, and what it may not name."""

from __future__ import annotations

from typing import Any

Wanted = tuple[bool, ...]  # of each result of a backward, whether anybody asked for it
ALL: Wanted = (True,) * 4
#: (class, values) -> a named tuple, in a third of the time of the class's own constructor.
named = tuple.__new__


def unpack(function: str, out: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    """The entries of out=, which names the first output or, as a tuple, several; None for those that it does not."""
    if out is None:
        return (None,) * len(names)
    if not isinstance(out, tuple):
        return (out,) + (None,) * (len(names) - 1)
    missing = len(names) - len(out)
    if missing < 0:
        raise ValueError(f"{function}: out has {len(out)} entries; expected at most {len(names)}: {', '.join(names)}")
    return out + (None,) * missing if missing else out


def check_unwanted(function: str, given: tuple[Any, ...], names: tuple[str, ...], wanted: tuple[bool, ...]) -> None:
    """Raises ValueError for an entry that the call does not produce."""
    if all(wanted):
        return
    for name, array, want in zip(names, given, wanted, strict=True):
        if array is not None and not want:
            raise ValueError(f"{function}: out.{name} is given, but this call does not produce it; expected None")
