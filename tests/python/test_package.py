# SPDX-License-Identifier: Apache-2.0
"""The installed package: what importing it needs, what is in it, its command line, and CMake projects that use it."""

from __future__ import annotations

import doctest
import importlib.metadata
import inspect
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
from typing import Any

import pytest

import normact
import normact.activation_options
import normact.activations
import normact.arrays
import normact.batch_norm_parts
import normact.batch_norms
import normact.gates
import normact.group_norms
import normact.info
import normact.norm

REPOSITORY = pathlib.Path(__file__).parents[2]
PACKAGE = pathlib.Path(normact.get_include()).parent
FRAMEWORKS = ("torch", "jax", "jaxlib", "tensorflow", "cupy", "ml_dtypes")
CMAKE = shutil.which("cmake", path=os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]))


def run(*command: object, **options: Any) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def python(program: str, **environment: str) -> str:
    return run(sys.executable, "-c", program, env=os.environ | environment)


# ---- Importing ----


def test_import_needs_numpy_alone():
    """With every framework blocked, NumPy arrays work; and nothing beyond the standard library and NumPy is loaded."""
    program = f"""
import sys
for name in {FRAMEWORKS}:
    sys.modules[name] = None
import numpy as np
before = set(sys.modules)
import normact
y, _, mean, rstd = normact.layer_norm(np.arange(6.0).reshape(2, 3), np.ones(3), return_stats=True)
assert normact.layer_norm_backward(y, y, np.ones(3), mean=mean, rstd=rstd).dweight.shape == (3,)
roots = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(*sorted(roots - set(sys.stdlib_module_names) - {{"normact", "numpy"}}))
"""
    # What an editable installation and other start-up hooks of this environment load is no business of ours.
    assert not [name for name in python(program).split() if not name.startswith(("_normact", "_editable"))]


def test_import_loads_no_framework_that_is_there():
    program = f"import sys, normact; print(*[name for name in {FRAMEWORKS} if name in sys.modules])"
    assert not python(program).split()


def test_a_framework_is_loaded_only_for_its_own_arrays():
    program = f"""
import sys, torch, normact
before = set(sys.modules)
normact.rms_norm(torch.ones(2, 3))
print(*[name for name in {FRAMEWORKS} if name in sys.modules and name not in before])
"""
    assert not python(program).split()


# ---- What is in it ----


def test_public_names():
    assert sorted(normact.__all__) == normact.__all__
    assert all(hasattr(normact, name) for name in normact.__all__)
    functions = [getattr(normact, name) for name in normact.__all__ if not name.startswith("_")]
    assert all(function.__doc__ for function in functions)


def test_version_has_one_home():
    header = (pathlib.Path(normact.get_include()) / "normact" / "normact.h").read_text(encoding="utf-8")
    parts = [re.search(rf"#define NORMACT_VERSION_{part} (\d+)", header)[1] for part in ("MAJOR", "MINOR", "PATCH")]  # type: ignore[index]
    assert ".".join(parts) == normact.__version__ == importlib.metadata.version("normact")


def test_files_are_installed():
    for name in ("include/normact/normact.h", "include/normact/lists.h", "include/normact/dlpack.h"):
        assert (PACKAGE / name).is_file(), name
    assert (pathlib.Path(normact.cmake_dir()) / "normactConfig.cmake").is_file()
    source = pathlib.Path(normact.__file__).parent
    assert (source / "py.typed").is_file()
    assert (source / "_core.pyi").is_file()


def test_build_info():
    info = normact.build_info()
    assert info["version"] == normact.__version__
    assert info["cpu_isa"] in ("baseline", "avx2", "avx512", "neon")
    assert pathlib.Path(info["extension"]).is_file()
    assert bool(info["cuda"]) == bool(info["cuda_architectures"])


def test_requirements():
    """NumPy alone is needed at run time; the rest are extras."""
    needed = [text for text in importlib.metadata.requires("normact") or [] if "extra ==" not in text]
    assert needed == ["numpy"]
    entry = importlib.metadata.entry_points(group="cmake.prefix", name="normact")
    assert [point.value for point in entry] == ["normact"]


def test_stub_is_up_to_date(tmp_path: pathlib.Path):
    stub = tmp_path / "_core.pyi"
    run(sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "normact._core", "-o", stub)
    kept = (pathlib.Path(normact.__file__).parent / "_core.pyi").read_text(encoding="utf-8")
    assert stub.read_text(encoding="utf-8") == kept, (
        "python -m nanobind.stubgen -m normact._core -o python/normact/_core.pyi"
    )


MODULES = (normact, normact.norm, normact.activations, normact.activation_options, normact.gates, normact.info)
MODULES += (normact.batch_norms, normact.batch_norm_parts, normact.group_norms)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_examples_in_docstrings(module: Any):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_every_function_has_an_example():
    found = {test.name.rpartition(".")[2] for module in MODULES for test in doctest.DocTestFinder().find(module)}
    functions = {name for name in normact.__all__ if inspect.isfunction(getattr(normact, name))}
    plain = {"build_info", "cmake_dir", "get_include", "get_num_threads", "set_num_threads", "get_sm_margin"}
    assert functions - found <= plain


def test_only_the_c_interface_is_exported():
    """A symbol of ours or of the CUDA runtime could otherwise bind to another library's in the same process."""
    library = PACKAGE / "lib" / "libnormact.so"
    lines = run("nm", "-D", "--defined-only", library).splitlines()
    names = {line.split()[-1].split("@")[0] for line in lines if line.split()[-2] != "A"}
    assert names
    assert all(name.startswith("normact_") for name in names), names


def test_source_distribution(tmp_path: pathlib.Path):
    """Everything that a build and the tests need is in it, and nothing that a build leaves behind."""
    program = f"from scikit_build_core.build import build_sdist; print(build_sdist({str(tmp_path)!r}))"
    name = run(sys.executable, "-c", program, cwd=REPOSITORY).splitlines()[-1]
    assert name == f"normact-{normact.__version__}.tar.gz"
    with tarfile.open(tmp_path / name) as archive:
        files = {member.name.partition("/")[2] for member in archive if member.isfile()}
    for wanted in (
        "CMakeLists.txt",
        "LICENSE",
        "Makefile",
        "README.md",
        "pyproject.toml",
        "PKG-INFO",
        "cpp/include/normact/normact.h",
        "cpp/cuda/device.cu",
        "cmake/install.cmake",
        "python/CMakeLists.txt",
        "python/bindings/module.cpp",
        "python/normact/__init__.py",
        "python/normact/_core.pyi",
        "python/normact/py.typed",
        "tests/python/test_package.py",
        "examples/c/CMakeLists.txt",
    ):
        assert wanted in files, wanted
    trash = re.compile(r"(^|/)(build|dist|\.[^/]+|__pycache__)/|\.(so|pyc|o|whl|gz)$")
    assert not [file for file in files if trash.search(file)]


# ---- The command line ----


def test_info():
    output = run(sys.executable, "-m", "normact", "info")
    assert re.search(rf"version +{re.escape(normact.__version__)}\n", output)
    assert re.search(r"torch +\d", output)
    assert run(sys.executable, "-m", "normact", "--version").strip() == normact.__version__


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["dance"], "invalid choice: 'dance'"),
        (["info", "more"], "unrecognized arguments: more"),
        ([], "usage: python -m normact"),
    ],
)
def test_wrong_command(arguments: list[str], sentence: str):
    done = subprocess.run([sys.executable, "-m", "normact", *arguments], capture_output=True, text=True)
    assert done.returncode == 2
    assert sentence in done.stderr


def test_quick_bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    from normact import quick_bench

    monkeypatch.setattr(quick_bench, "SHAPES", ((8, 16),))
    monkeypatch.setattr(quick_bench, "ROUND_SECONDS", 1e-4)
    assert quick_bench.main() == 0
    output = capsys.readouterr().out
    numpy_table, torch_table = output.split("PyTorch, float32, CPU")
    for table, columns in ((numpy_table, 4), (torch_table, 6)):
        for operation in ("layer_norm", "layer_norm_backward", "rms_norm", "rms_norm_backward"):
            row = re.search(rf"^ +8x16 +{operation} .*$", table, re.MULTILINE)
            assert row, operation
            assert len(row[0].split()) == columns


# ---- CMake projects ----


@pytest.mark.parametrize("language", ["c", "cpp"])
def test_find_package_from_the_package_folder(language: str, tmp_path: pathlib.Path):
    assert CMAKE, "the test group of pyproject.toml brings CMake"
    script = REPOSITORY / "tests" / "cpp" / "consumer_test.cmake"
    run(
        CMAKE,
        f"-DEXAMPLE={REPOSITORY / 'examples' / language}",
        f"-DWORK_DIR={tmp_path}",
        f"-DPREFIX={PACKAGE}",
        "-P",
        script,
    )


def test_find_package_with_cmake_dir(tmp_path: pathlib.Path):
    assert CMAKE
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(consumer LANGUAGES CXX)\n"
        f"find_package(normact {normact.__version__} CONFIG REQUIRED)\n"
        "add_executable(consumer main.cpp)\ntarget_link_libraries(consumer PRIVATE normact::normact)\n"
    )
    (tmp_path / "main.cpp").write_text(
        "#include <normact/normact.h>\nint main() { return normact_version() == NORMACT_VERSION ? 0 : 1; }\n"
    )
    run(CMAKE, "-S", tmp_path, "-B", tmp_path / "build", f"-Dnormact_DIR={normact.cmake_dir()}")
    run(CMAKE, "--build", tmp_path / "build")
    run(tmp_path / "build" / "consumer")


@pytest.mark.parametrize(
    ("known", "processor", "expected"),
    [
        ((75, 80, 86, 90, 100, 103, 110, 120, 121), "x86_64", "75-real;80-real;90-real;100-real;120"),
        ((75, 80, 86, 90, 100, 103, 110, 120, 121), "aarch64", "75-real;80-real;90-real;100-real;110-real;120"),
        ((50, 60, 70, 75, 80, 89, 90), "x86_64", "75-real;80-real;90"),
    ],
)
def test_major_architectures(tmp_path: pathlib.Path, known: tuple[int, ...], processor: str, expected: str):
    """Those of nvcc that normact serves; only the newest with PTX."""
    assert CMAKE
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\nprintf '%s\\n' " + " ".join(f"compute_{number}" for number in known) + "\n")
    nvcc.chmod(0o755)
    script = tmp_path / "script.cmake"
    script.write_text(
        f'set(NORMACT_CUDA OFF)\nset(CMAKE_SYSTEM_PROCESSOR {processor})\ninclude("{REPOSITORY}/cmake/cuda.cmake")\n'
        f'normact_major_architectures("{nvcc}" found)\nfile(WRITE "{tmp_path}/found" "${{found}}")\n'
    )
    run(CMAKE, "-P", script)
    assert (tmp_path / "found").read_text() == expected
