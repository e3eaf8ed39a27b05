// SPDX-License-Identifier: Apache-2.0
#include "core/array.h"

#include <cstdint>
#include <limits>
#include <vector>

#include "check.h"

namespace {

using normact::Array;
using normact::Purpose;
using normact::Status;

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

// A descriptor that owns its sizes.
struct Tensor {
  std::vector<int64_t> shape, strides;
  normact_tensor raw{};

  Tensor(void* data, std::vector<int64_t> shape_in, std::vector<int64_t> strides_in = {})
      : shape(std::move(shape_in)), strides(std::move(strides_in)) {
    raw = {data,
           NORMACT_DEVICE_CPU,
           0,
           static_cast<int32_t>(shape.size()),
           NORMACT_DTYPE_FLOAT,
           32,
           1,
           shape.data(),
           strides.empty() ? nullptr : strides.data(),
           0};
  }
  Status read(Array* array, Purpose purpose = Purpose::run) const {
    return normact::read_array(raw, "x", purpose, array);
  }
};

alignas(16) float buffer[64];

void expect_invalid(const Tensor& tensor, const char* word, int line, normact_status code = NORMACT_INVALID_ARGUMENT) {
  Array array;
  const Status status = tensor.read(&array);
  const bool good =
      status.code() == code && status.message().rfind("x ", 0) == 0 && status.message().find(word) != std::string::npos;
  if (!good) check::fail(__FILE__, line, "wanted an error with '" + std::string(word) + "', got: " + status.message());
}
#define EXPECT_INVALID(...) expect_invalid(__VA_ARGS__, __LINE__)

TEST(reads_a_contiguous_array) {
  Array array;
  CHECK(Tensor(buffer, {2, 3, 4}).read(&array).ok());
  CHECK_EQ(array.size, 24);
  CHECK_EQ(array.ndim, 3);
  CHECK_EQ(array.lowest, 0);
  CHECK_EQ(array.highest, 96);
  CHECK(array.data == reinterpret_cast<char*>(buffer));
  CHECK(array.dtype == normact::DType::f32);
  CHECK(array.device == (normact::Device{false, 0}));
}

TEST(reads_scalars_and_many_dimensions) {
  Array array;
  CHECK(Tensor(buffer, {}).read(&array).ok());
  CHECK_EQ(array.size, 1);
  CHECK(Tensor(buffer, std::vector<int64_t>(64, 1)).read(&array).ok());
  expect_invalid(Tensor(buffer, std::vector<int64_t>(65, 1)), "ndim 65", __LINE__, NORMACT_NOT_SUPPORTED);
}

TEST(reads_strides_of_either_sign) {
  Array array;
  CHECK(Tensor(buffer + 63, {2, 3}, {-8, 2}).read(&array).ok());
  CHECK_EQ(array.lowest, -32);
  CHECK_EQ(array.highest, 4 * 4 + 4);
  CHECK(Tensor(buffer, {1000, 3}, {0, 1}).read(&array).ok());
  CHECK_EQ(array.highest, 12);
  CHECK(Tensor(buffer, {1, 3}, {kHuge, 1}).read(&array).ok());  // the stride of one index is never used
}

TEST(applies_the_byte_offset) {
  Tensor tensor(buffer, {4});
  tensor.raw.byte_offset = 8;
  Array array;
  CHECK(tensor.read(&array).ok());
  CHECK(array.data == reinterpret_cast<char*>(buffer + 2));
  tensor.raw.byte_offset = 2;
  EXPECT_INVALID(tensor, "multiple of 4");
  tensor.raw.byte_offset = std::numeric_limits<uint64_t>::max() - 3;
  EXPECT_INVALID(tensor, "byte_offset");
}

TEST(empty_arrays_need_no_data) {
  Array array;
  CHECK(Tensor(nullptr, {0, 5}).read(&array).ok());
  CHECK_EQ(array.size, 0);
  CHECK(Tensor(nullptr, {5, 0}, {kHuge, kHuge}).read(&array).ok());
  CHECK_EQ(array.highest, 0);
  EXPECT_INVALID(Tensor(nullptr, {5}), "NULL data");
  CHECK(Tensor(nullptr, {5}).read(&array, Purpose::query).ok());
  CHECK(array.data != nullptr);
}

TEST(refuses_bad_shapes_and_strides) {
  EXPECT_INVALID(Tensor(buffer, {2, -1}), "size -1 in dimension 1");
  EXPECT_INVALID(Tensor(buffer, {kHuge, 2}), "exceeds 2^63");
  EXPECT_INVALID(Tensor(buffer, {int64_t{1} << 61, 1}), "exceeds 2^63");  // its elements fit, its bytes do not
  EXPECT_INVALID(Tensor(buffer, {0, kHuge, kHuge}), "exceeds 2^63");
  EXPECT_INVALID(Tensor(buffer, {2, 3}, {kHuge, 1}), "reach beyond");
  EXPECT_INVALID(Tensor(buffer, {3, 3}, {kHuge / 8, kHuge / 8}), "reach beyond");
  EXPECT_INVALID(Tensor(buffer, {2}, {-(int64_t{1} << 60)}), "leave the address space");
  Tensor tensor(buffer, {2});
  tensor.raw.ndim = -1;
  EXPECT_INVALID(tensor, "ndim -1");
  tensor.raw.ndim = 1;
  tensor.raw.shape = nullptr;
  EXPECT_INVALID(tensor, "NULL shape");
}

TEST(knows_four_dtypes) {
  struct Row {
    uint8_t code, bits;
    normact::DType dtype;
  };
  Tensor tensor(buffer, {2});
  Array array;
  for (const Row& row : {Row{2, 64, normact::DType::f64}, Row{2, 32, normact::DType::f32},
                         Row{2, 16, normact::DType::f16}, Row{4, 16, normact::DType::bf16}}) {
    tensor.raw.dtype_code = row.code;
    tensor.raw.dtype_bits = row.bits;
    CHECK(tensor.read(&array).ok());
    CHECK(array.dtype == row.dtype);
    CHECK_EQ(array.highest, 2 * row.bits / 8);
  }
  int known = 0;
  for (int code = 0; code < 256; ++code) {
    for (int bits = 0; bits < 256; ++bits) {
      tensor.raw.dtype_code = static_cast<uint8_t>(code);
      tensor.raw.dtype_bits = static_cast<uint8_t>(bits);
      known += tensor.read(&array).ok();
    }
  }
  CHECK_EQ(known, 4);
  tensor = Tensor(buffer, {2});
  tensor.raw.dtype_lanes = 2;
  EXPECT_INVALID(tensor, "lanes 2");
  tensor.raw.dtype_lanes = 0;
  EXPECT_INVALID(tensor, "lanes 0");
}

TEST(knows_four_devices) {
  Tensor tensor(buffer, {2});
  Array array;
  for (int type = -2; type < 20; ++type) {
    tensor.raw.device_type = type;
    tensor.raw.device_id = 3;
    const bool cpu = type == 1 || type == 3, cuda = type == 2 || type == 13;
    CHECK_EQ(tensor.read(&array).ok(), cpu || cuda);
    if (cpu) CHECK(array.device == (normact::Device{false, 0}));
    if (cuda) CHECK(array.device == (normact::Device{true, 3}));
  }
  tensor.raw.device_type = NORMACT_DEVICE_CUDA;
  tensor.raw.device_id = -1;
  EXPECT_INVALID(tensor, "device_id -1");
}

TEST(reads_bytes_apart_from_numbers) {
  Tensor tensor(buffer, {5});
  normact::Memory memory;
  CHECK(!normact::read_bytes(tensor.raw, "x", Purpose::run, &memory).ok());
  tensor.raw.dtype_code = NORMACT_DTYPE_UINT;
  tensor.raw.dtype_bits = 8;
  tensor.raw.byte_offset = 3;
  CHECK(normact::read_bytes(tensor.raw, "x", Purpose::run, &memory).ok());
  CHECK_EQ(memory.element, 1);
  CHECK_EQ(memory.highest, 5);
  CHECK(memory.data == reinterpret_cast<char*>(buffer) + 3);
  EXPECT_INVALID(tensor, "dtype code 1 with 8 bits");
}

}  // namespace
