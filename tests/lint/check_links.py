# SPDX-License-Identifier: Apache-2.0
"""What a document links to or shows lies where it says; RESULTS.md and its plots are made by one command."""

from __future__ import annotations

import re

from source import ROOT, files, shown

LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def targets(text: str) -> list[str]:
    """The files that a text refers to, without addresses of the web and without what is code."""
    return [target for target in LINK.findall(FENCE.sub("", text)) if ":" not in target]


def check() -> list[str]:
    documents = [*sorted(ROOT.glob("*.md")), *files(".md")]
    return [
        f"{shown(document)}: no such file as {target}"
        for document in documents
        for target in targets(document.read_text(encoding="utf-8"))
        if not (document.parent / target).exists()
    ]
