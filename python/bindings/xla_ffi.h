// SPDX-License-Identifier: Apache-2.0
// What XLA and a custom call say to each other: the part of XLA's foreign function interface that our handlers use, at
// version 0.1, which every jaxlib from 0.5 on accepts. Declared here so that no framework is needed to build;
// tests/python/test_jax_abi.py holds each struct against the header of the jaxlib that runs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace normact::python::xla {

constexpr int kMajorVersion = 0;
constexpr int kMinorVersion = 1;

struct Error;    // owned by whoever receives it
struct Context;  // of one execution

/// Every struct may carry a chain of these. The runtime asks for metadata through one.
struct Extension {
  size_t struct_size;
  int32_t type;
  Extension* next;
};
constexpr int32_t kMetadataExtension = 1;

struct Version {
  size_t struct_size;
  Extension* extensions;
  int32_t major;
  int32_t minor;
};

struct Metadata {
  size_t struct_size;
  Version version;
  uint32_t traits;  // 0: not to be recorded into a command buffer, as handlers ask for scratch memory
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;  // to fill in
};

// ---- Data ----

enum DataType : int32_t { kU8 = 6, kS64 = 5, kF16 = 10, kF32 = 11, kF64 = 12, kBF16 = 16 };

struct Buffer {  // row-major
  size_t struct_size;
  Extension* extensions;
  int32_t dtype;
  void* data;
  int64_t rank;
  int64_t* dims;
};

struct Text {
  const char* data;
  size_t size;
};

struct Scalar {
  int32_t dtype;
  void* value;
};

struct Array {
  int32_t dtype;
  size_t size;
  void* data;
};

constexpr int32_t kIsBuffer = 1;  // of operands and results

struct Values {  // operands, or results
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  int32_t* types;
  void** values;
};

enum AttributeType : int32_t { kArray = 1, kDictionary = 2, kScalar = 3, kText = 4 };

struct Attributes {  // sorted by name
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  int32_t* types;
  Text** names;
  void** values;
};

// ---- What a handler may ask of the runtime ----

enum ErrorCode : int32_t { kInvalidArgument = 3, kResourceExhausted = 8, kUnimplemented = 12, kInternal = 13 };

struct ErrorCreate {
  size_t struct_size;
  Extension* extensions;
  const char* message;
  int32_t code;
};

struct StreamGet {
  size_t struct_size;
  Extension* extensions;
  Context* context;
  void* stream;  // out
};

struct MemoryAllocate {
  size_t struct_size;
  Extension* extensions;
  Context* context;
  size_t size;
  size_t alignment;
  void* data;  // out
};

struct MemoryFree {
  size_t struct_size;
  Extension* extensions;
  Context* context;
  size_t size;
  void* data;
};

struct DeviceOrdinalGet {
  size_t struct_size;
  Extension* extensions;
  Context* context;
  int32_t ordinal;  // out
};

using Unused = void (*)();

struct Api {
  size_t struct_size;
  Extension* extensions;
  Version version;
  void* internal;
  Error* (*error_create)(ErrorCreate*);
  Unused error_message;
  Unused error_destroy;
  Unused handler_register;
  Error* (*stream_get)(StreamGet*);
  Unused type_register;
  Unused context_get;
  Unused state_set;
  Unused state_get;
  Error* (*memory_allocate)(MemoryAllocate*);
  Error* (*memory_free)(MemoryFree*);
  Unused schedule;
  Unused num_threads;
  Unused future_create;
  Unused future_set_available;
  Unused future_set_error;
  Unused run_id_get;
  Error* (*device_ordinal_get)(DeviceOrdinalGet*);
};

// ---- A call ----

constexpr int32_t kExecute = 3;  // the stage in which operands have values

struct Frame {
  size_t struct_size;
  Extension* extensions;
  const Api* api;
  Context* context;
  int32_t stage;
  Values operands;
  Values results;
  Attributes attributes;
};

/// Null is success.
using Handler = Error*(Frame*);

}  // namespace normact::python::xla
