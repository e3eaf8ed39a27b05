# SPDX-License-Identifier: Apache-2.0
"""The project's own rules, as tests; also a script that prints what they find."""

from __future__ import annotations

import sys

import check_includes
import check_links
import check_lists
import check_sizes


def report(problems: list[str]) -> None:
    assert not problems, "\n" + "\n".join(problems)


def test_sizes() -> None:
    report(check_sizes.check())


def test_includes() -> None:
    report(check_includes.check())


def test_headers_of_cuda_sources() -> None:
    report(check_includes.cuda_standard())


def test_lists() -> None:
    report(check_lists.check())


def test_links() -> None:
    report(check_links.check())


def test_the_size_rule_sees_functions() -> None:
    """The rule itself is tested: a function of 61 lines is found, whatever is around it."""
    body = "  work();\n" * 59
    text = f"namespace a {{\nstruct S {{\n  int f(int x) const {{\n{body}  }}\n}};\n}}\nint g() {{ return 1'000; }}\n"
    found = check_sizes.cxx_functions(text)
    assert [count for _, _, count in found] == [61, 1]
    assert found[0][0] == "int f(int x) const"
    assert found[0][1] == 3


def test_the_include_rule_sees_imports() -> None:
    import ast

    tree = ast.parse("import torch.nn\ndef f():\n    from jax import numpy\nimport numpy\n")
    assert check_includes.framework_imports(tree) == [(1, "torch", True), (3, "jax", False)]


def test_the_list_rule_reads_every_row() -> None:
    assert check_lists.names("NORMACT_NORM_LIST") == ["layer_norm", "rms_norm"]
    structs = {entry.name: entry.struct for entry in check_lists.entries("NORMACT_ACTIVATION_LIST")}
    assert structs["gelu_tanh"] == "GeluTanh"


def test_the_link_rule_sees_links() -> None:
    text = "[a](b.md#c) ![d](e/f.svg) [g](https://h.org) [i](#j)\n```\nx[0](k)\n```\n"
    assert check_links.targets(text) == ["b.md", "e/f.svg"]


if __name__ == "__main__":
    every = check_sizes.check() + check_includes.check() + check_lists.check() + check_links.check()
    print("\n".join(every))
    sys.exit(bool(every))
