// SPDX-License-Identifier: Apache-2.0
#include "bindings/xla_call.h"

#include <memory>
#include <new>

#include "bindings/error.h"

namespace normact::python::xla {
namespace {

constexpr size_t kScratchAlignment = 256;  // which the library asks for
constexpr size_t kXlaAlignment = 16;       // the most that XLA grants

[[noreturn]] void fail(int32_t code, std::string sentence) { throw Failure{code, std::move(sentence)}; }

[[noreturn]] void fail_internally(std::string_view what) {
  fail(kInternal, "normact: " + std::string(what) + "; please report it");
}

struct Dtype {
  uint8_t code, bits;
};

Dtype dtype_of(int32_t dtype) {
  switch (dtype) {
    case kF64: return {NORMACT_DTYPE_FLOAT, 64};
    case kF32: return {NORMACT_DTYPE_FLOAT, 32};
    case kF16: return {NORMACT_DTYPE_FLOAT, 16};
    case kBF16: return {NORMACT_DTYPE_BFLOAT, 16};
    case kU8: return {NORMACT_DTYPE_UINT, 8};
    case kS64: return {NORMACT_DTYPE_INT, 64};
    default: break;
  }
  fail(kInvalidArgument, "normact: an operand has XLA's element type " + std::to_string(dtype) +
                             "; expected float64, float32, float16 or bfloat16");
}

void check_call(Error* error) {
  if (error != nullptr) throw Failure{kInternal, "", error};
}

}  // namespace

const void* Options::find(std::string_view name, AttributeType type) const {
  for (int64_t i = 0; i < attributes_.size; ++i) {
    const Text& text = *attributes_.names[i];
    if (std::string_view(text.data, text.size) != name) continue;
    if (attributes_.types[i] != type) break;
    return attributes_.values[i];
  }
  fail_internally("the call has no attribute " + std::string(name) + " of the right kind");
}

int64_t Options::integer(std::string_view name) const {
  const auto* scalar = static_cast<const Scalar*>(find(name, kScalar));
  if (scalar->dtype != kS64) fail_internally("the attribute " + std::string(name) + " is not int64");
  return *static_cast<const int64_t*>(scalar->value);
}

double Options::number(std::string_view name) const {
  const auto* scalar = static_cast<const Scalar*>(find(name, kScalar));
  if (scalar->dtype != kF64) fail_internally("the attribute " + std::string(name) + " is not float64");
  return *static_cast<const double*>(scalar->value);
}

std::string Options::text(std::string_view name) const {
  const auto* text = static_cast<const Text*>(find(name, kText));
  return {text->data, text->size};
}

const Array& Options::integers(std::string_view name) const {
  const auto* array = static_cast<const Array*>(find(name, kArray));
  if (array->dtype != kS64) fail_internally("the attribute " + std::string(name) + " is not of int64");
  return *array;
}

Tensors::Tensors(const Frame& frame, const Options& options, size_t count, int32_t device_type, int32_t device_id)
    : device_type_(device_type), device_id_(device_id) {
  const Array& fields = options.integers("fields");
  const auto* places = static_cast<const int64_t*>(fields.data);
  if (static_cast<int64_t>(fields.size) != frame.operands.size + frame.results.size) {
    fail_internally("the call has another number of operands and results than fields");
  }
  place(frame.operands, places, count);
  place(frame.results, places + frame.operands.size, count);
}

void Tensors::place(const Values& values, const int64_t* fields, size_t count) {
  for (int64_t i = 0; i < values.size; ++i) {
    if (values.types[i] != kIsBuffer) fail_internally("an operand or result is no buffer");
    const auto field = static_cast<size_t>(fields[i]);
    if (field >= count) fail_internally("a field is out of range");
    const auto& buffer = *static_cast<const Buffer*>(values.values[i]);
    if (pointers_[field] != nullptr && tensors_[field].data != buffer.data) {
      fail_internally("XLA gave a tensor that is updated in place two buffers");
    }
    const auto [code, bits] = dtype_of(buffer.dtype);
    tensors_[field] = {buffer.data, device_type_, device_id_, static_cast<int32_t>(buffer.rank), code, bits, 1,
                       buffer.dims, nullptr,      0};
    pointers_[field] = &tensors_[field];
  }
}

Scratch::Scratch(const Frame& frame, Platform platform, size_t bytes)
    : frame_(frame), platform_(platform), bytes_(bytes) {
  if (bytes == 0) return;
  if (platform == Platform::cpu) {
    data_ = ::operator new(bytes, std::align_val_t{kScratchAlignment});
    return;
  }
  bytes_ = bytes + kScratchAlignment - kXlaAlignment;
  MemoryAllocate args{sizeof args, nullptr, frame.context, bytes_, kXlaAlignment, nullptr};
  check_call(frame.api->memory_allocate(&args));
  block_ = args.data;
  data_ = std::align(kScratchAlignment, bytes, args.data, args.size);
}

Scratch::~Scratch() {
  if (platform_ == Platform::cpu) {
    ::operator delete(data_, std::align_val_t{kScratchAlignment});
    return;
  }
  if (block_ == nullptr) return;
  MemoryFree args{sizeof args, nullptr, frame_.context, bytes_, block_};
  frame_.api->memory_free(&args);  // it fails only for memory that is not its own
}

bool answer_metadata(const Frame& frame) {
  if (frame.extensions == nullptr || frame.extensions->type != kMetadataExtension) return false;
  Metadata& metadata = *reinterpret_cast<MetadataExtension*>(frame.extensions)->metadata;
  metadata.version = {sizeof metadata.version, nullptr, kMajorVersion, kMinorVersion};
  metadata.traits = 0;
  return true;
}

void* stream_of(const Frame& frame) {
  StreamGet args{sizeof args, nullptr, frame.context, nullptr};
  check_call(frame.api->stream_get(&args));
  return args.stream;
}

int32_t device_of(const Frame& frame) {
  DeviceOrdinalGet args{sizeof args, nullptr, frame.context, 0};
  check_call(frame.api->device_ordinal_get(&args));
  return args.ordinal;
}

void check_status(normact_status status, const Options& options) {
  if (status == NORMACT_OK) return;
  const std::string sentence = last_sentence(options.text("function").c_str());
  switch (status) {
    case NORMACT_INVALID_ARGUMENT: fail(kInvalidArgument, sentence);
    case NORMACT_NOT_SUPPORTED: fail(kUnimplemented, sentence);
    case NORMACT_OUT_OF_MEMORY: fail(kResourceExhausted, sentence);
    default: fail(kInternal, sentence);
  }
}

Error* make_error(const Frame& frame, const Failure& failure) {
  if (failure.given != nullptr) return failure.given;
  ErrorCreate args{sizeof args, nullptr, failure.sentence.c_str(), failure.code};
  return frame.api->error_create(&args);
}

}  // namespace normact::python::xla
