# SPDX-License-Identifier: Apache-2.0
"""What we declare of XLA's foreign function interface is what jaxlib declares, and another version is refused."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys

import jax
import pytest

import normact.jax  # noqa: F401
from normact.jax import target

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER = pathlib.Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"

# Ours -> theirs, and the members in order; a member that is only skipped over has no name here.
STRUCTS = {
    "Version": ("XLA_FFI_Api_Version", "struct_size extension_start major_version minor_version"),
    "Metadata": ("XLA_FFI_Metadata", "struct_size api_version traits"),
    "Buffer": ("XLA_FFI_Buffer", "struct_size extension_start dtype data rank dims"),
    "Text": ("XLA_FFI_ByteSpan", "ptr len"),
    "Scalar": ("XLA_FFI_Scalar", "dtype value"),
    "Array": ("XLA_FFI_Array", "dtype size data"),
    "Values": ("XLA_FFI_Args", "struct_size extension_start size types args"),
    "Attributes": ("XLA_FFI_Attrs", "struct_size extension_start size types names attrs"),
    "ErrorCreate": ("XLA_FFI_Error_Create_Args", "struct_size extension_start message errc"),
    "StreamGet": ("XLA_FFI_Stream_Get_Args", "struct_size extension_start ctx stream"),
    "MemoryAllocate": ("XLA_FFI_DeviceMemory_Allocate_Args", "struct_size extension_start ctx size alignment data"),
    "MemoryFree": ("XLA_FFI_DeviceMemory_Free_Args", "struct_size extension_start ctx size data"),
    "DeviceOrdinalGet": ("XLA_FFI_DeviceOrdinal_Get_Args", "struct_size extension_start ctx device_ordinal"),
    "Frame": ("XLA_FFI_CallFrame", "struct_size extension_start api ctx stage args rets attrs"),
}
FUNCTIONS = {
    "error_create": "XLA_FFI_Error_Create",
    "stream_get": "XLA_FFI_Stream_Get",
    "memory_allocate": "XLA_FFI_DeviceMemory_Allocate",
    "memory_free": "XLA_FFI_DeviceMemory_Free",
    "device_ordinal_get": "XLA_FFI_DeviceOrdinal_Get",
}
CONSTANTS = {
    "kMetadataExtension": "XLA_FFI_Extension_Metadata",
    "kU8": "XLA_FFI_DataType_U8",
    "kS64": "XLA_FFI_DataType_S64",
    "kF16": "XLA_FFI_DataType_F16",
    "kF32": "XLA_FFI_DataType_F32",
    "kF64": "XLA_FFI_DataType_F64",
    "kBF16": "XLA_FFI_DataType_BF16",
    "kIsBuffer": "XLA_FFI_ArgType_BUFFER",
    "kArray": "XLA_FFI_AttrType_ARRAY",
    "kDictionary": "XLA_FFI_AttrType_DICTIONARY",
    "kScalar": "XLA_FFI_AttrType_SCALAR",
    "kText": "XLA_FFI_AttrType_STRING",
    "kInvalidArgument": "XLA_FFI_Error_Code_INVALID_ARGUMENT",
    "kResourceExhausted": "XLA_FFI_Error_Code_RESOURCE_EXHAUSTED",
    "kUnimplemented": "XLA_FFI_Error_Code_UNIMPLEMENTED",
    "kInternal": "XLA_FFI_Error_Code_INTERNAL",
    "kExecute": "XLA_FFI_ExecutionStage_EXECUTE",
}


def members(struct: str) -> list[str]:
    """The names of the members that our header declares, in order."""
    text = (ROOT / "python" / "bindings" / "xla_ffi.h").read_text()
    match = re.search(rf"^struct {struct} {{[^\n]*\n(.*?)^}};", text, re.MULTILINE | re.DOTALL)
    assert match, struct
    return re.findall(r"^  (?:const )?[\w:]+[ *]+(\w+);", match.group(1), re.MULTILINE)


def assertions(header: str) -> str:
    """static_asserts of sizes, offsets and constants."""
    lines = [
        "#include <xla/ffi/api/c_api.h>",
        '#include "bindings/xla_ffi.h"',
        "namespace ours = normact::python::xla;",
    ]
    # From 0.5 on their internal extensions have another name; the struct is the same.
    extension = "XLA_FFI_Extension_Base" if "XLA_FFI_Extension_Base;" in header else "XLA_FFI_InternalExtension"
    structs = STRUCTS | {"Extension": (extension, "struct_size type next")}

    def equal(ours: str, theirs: str) -> None:
        lines.append(f'static_assert({ours} == {theirs}, "{ours}");')

    for name, (theirs, fields) in structs.items():
        own = members(name)
        assert len(own) == len(fields.split()), name
        for ours, field in zip(own, fields.split(), strict=True):
            equal(f"offsetof(ours::{name}, {ours})", f"offsetof({theirs}, {field})")
            equal(f"sizeof(ours::{name}::{ours})", f"sizeof({theirs}::{field})")
    for name in ("Buffer", "Values", "Attributes", "Text", "Scalar", "Array", "Version"):
        equal(f"sizeof(ours::{name})", f"sizeof({structs[name][0]})")
    for ours, theirs in FUNCTIONS.items():
        equal(f"offsetof(ours::Api, {ours})", f"offsetof(XLA_FFI_Api, {theirs})")
    equal("offsetof(ours::MetadataExtension, metadata)", "offsetof(XLA_FFI_Metadata_Extension, metadata)")
    for ours, theirs in CONSTANTS.items():
        equal(f"int(ours::{ours})", f"int({theirs})")
    return "\n".join(lines) + "\n"


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_our_declarations_are_jaxlibs(tmp_path: pathlib.Path) -> None:
    source = tmp_path / "abi.cpp"
    source.write_text(assertions(HEADER.read_text()))
    includes = [f"-isystem{jax.ffi.include_dir()}", f"-I{ROOT / 'python'}"]
    command = ["g++", "-std=c++20", "-fsyntax-only", "-Wno-invalid-offsetof", *includes, str(source)]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def fake(tmp_path: pathlib.Path, text: str) -> str:
    header = tmp_path / "xla" / "ffi" / "api" / "c_api.h"
    header.parent.mkdir(parents=True)
    header.write_text(text)
    return str(tmp_path)


def versioned(major: int, minor: int) -> str:
    return f"#define XLA_FFI_API_MAJOR {major}\n#define XLA_FFI_API_MINOR {minor}\n"


def test_this_jaxlib_is_accepted() -> None:
    assert target.header_version(jax.ffi.include_dir()) >= (0, 1)
    target.check_version(jax.ffi.include_dir())


@pytest.mark.parametrize("version", [(1, 0), (0, 0)])
def test_another_version_is_refused(tmp_path: pathlib.Path, version: tuple[int, int]) -> None:
    with pytest.raises(
        ImportError, match=rf"speaks version {version[0]}\.{version[1]} of .*; expected 0\.1 or a later"
    ):
        target.register(fake(tmp_path, versioned(*version)))


@pytest.mark.parametrize("text", ["", "#define XLA_FFI_API_MAJOR 0\n"])
def test_no_version_is_refused(tmp_path: pathlib.Path, text: str) -> None:
    with pytest.raises(ImportError, match="does not state the version of XLA's foreign function interface"):
        target.register(fake(tmp_path, text))


def test_a_refusal_leaves_jax_alone(tmp_path: pathlib.Path) -> None:
    """In a process of its own: the import fails, and the backend starts and computes."""
    program = """
import sys, jax
jax.ffi.include_dir = lambda: sys.argv[1]
try:
    import normact.jax
except ImportError as error:
    print(error)
print(jax.jit(lambda x: x + 1)(jax.numpy.zeros(2)).tolist())
"""
    command = [sys.executable, "-c", program, fake(tmp_path, versioned(1, 2))]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "speaks version 1.2" in found
    assert found.endswith("[1.0, 1.0]\n")
