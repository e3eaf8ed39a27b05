// SPDX-License-Identifier: Apache-2.0
// What the readers of all geometries ask of a tensor argument: presence, device, dtype, shape, and outputs that lie
// apart. A reader declares its arguments in a table of these, extended by where their views go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/array.h"
#include "core/message.h"
#include "core/status.h"

namespace normact {

/// Sets of small numbers: axes, arguments.
constexpr uint64_t bit(uint64_t member) { return uint64_t{1} << member; }
constexpr bool contains(uint64_t set, uint64_t member) { return (set & bit(member)) != 0; }
constexpr uint64_t kAllDims = ~uint64_t{0};

constexpr int kMaxArguments = 16;

/// Decides dtype, and with the geometry shape.
enum class Role : uint8_t {
  element,    // x's shape and dtype
  sum,        // x's shape; x's dtype or the accumulator's
  gradient,   // x's shape; x's dtype, or 16 bits if that is float32
  parameter,  // x's shape over the normalised axes, or the bias or channel axis; x's dtype or the accumulator's
  statistic,  // x's shape without the normalised axes, or an entry a set; the accumulator's dtype
  bits,       // a bit for each of x's elements; uint8
  // Of the channel norms alone:
  running,  // x's size along the channel axis; the accumulator's dtype, as for the next two
  table,    // rows of as many entries
  count,    // as many entries, or one
  counter,  // one int64
};

/// One row of a reader's table.
struct TensorArgument {
  const char* name;
  const normact_tensor* tensor;  // null: absent
  Role role;
  bool output;
  uint64_t may_be;  // for outputs: the set of arguments, by place in the table, that it may be the very same tensor as
};

/// An argument that is present.
struct Present {
  const TensorArgument* argument;
  uint64_t place;                  // in the table
  Array array;                     // bits and counters have no dtype
  int64_t stride[kMaxTensorDims];  // for every dimension of the index space, 0 where it lacks the dimension
};

inline Status require(const normact_tensor* tensor, const char* name) {
  if (tensor != nullptr) return {};
  return invalid(name, " is NULL; expected a tensor");
}

/// Everything that can be checked on the argument alone.
Status read_argument(const TensorArgument& argument, uint64_t place, Purpose purpose, Present* present);

/// The arguments of a reader's table that are present, in its order, kept in `storage`.
template <class Argument>
Status read_all(std::span<const Argument> arguments, Purpose purpose, Present (&storage)[kMaxArguments],
                std::span<Present>* all) {
  size_t count = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].tensor != nullptr) NORMACT_TRY(read_argument(arguments[i], i, purpose, &storage[count++]));
  }
  *all = {storage, count};
  return {};
}

/// Device and dtype, by role, beside those of x: the argument, whatever its name, that the others are measured by.
Status check_device_and_dtype(const Present& present, const Present& x);
Status check_device(const Present& present, const Present& x);
Status check_dtype(const Present& present, const Present& x);

/// A contiguous bit for each element of x, in an array of as many axes as there are `orders` to choose from, or fewer.
Status check_bits(const Present& present, const Present& x, int orders);

/// The strides of an array that has the dimensions `dims` of an index space; false if its shape is not the space's.
bool align(const Array& array, int ndim, const int64_t* shape, uint64_t dims, int64_t* stride);

/// The sentence for what align refuses; `which` says in words where the expected shape comes from.
Status wrong_shape(const Present& present, int ndim, const int64_t* shape, uint64_t dims, const std::string& which);

/// The axis, counted from the end if negative; false if there is none such. And the sentence for that.
bool find_axis(int64_t given, int ndim, int* axis);
Status no_such_axis(const std::string& field, int64_t given, const Present& x);

/// The sentence for more than kMaxDims dimensions; `which` is "" or names some of them, with a space before it.
Status too_many_dims(const Present& x, const char* which);

/// Every output against itself and all other arguments that have elements.
Status check_overlaps(std::span<const Present> all);

}  // namespace normact
