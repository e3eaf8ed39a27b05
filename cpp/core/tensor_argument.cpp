// SPDX-License-Identifier: Apache-2.0
#include "core/tensor_argument.h"

#include <string>

#include "core/overlap.h"
#include "core/problem.h"

namespace normact {
namespace {

std::string device_text(Device device) { return device.cuda ? text("CUDA device ", device.id) : "the CPU"; }

// The same addresses in the same order; dimensions of one index have no stride worth comparing.
bool same_tensor(const Memory& a, const Memory& b) {
  if (a.data != b.data || a.element != b.element || a.ndim != b.ndim) return false;
  int64_t contiguous = 1;
  for (int d = a.ndim - 1; d >= 0; --d) {
    if (a.shape[d] != b.shape[d]) return false;
    const int64_t in_a = a.strides != nullptr ? a.strides[d] : contiguous;
    const int64_t in_b = b.strides != nullptr ? b.strides[d] : contiguous;
    if (a.shape[d] != 1 && in_a != in_b) return false;
    contiguous *= a.shape[d];
  }
  return true;
}

// The cheap test that decides nearly always.
bool ranges_are_apart(const Memory& a, const Memory& b) {
  return a.data + a.highest <= b.data + b.lowest || b.data + b.highest <= a.data + a.lowest;
}

}  // namespace

Status read_argument(const TensorArgument& argument, uint64_t place, Purpose purpose, Present* present) {
  present->argument = &argument;
  present->place = place;
  if (argument.role == Role::bits) return read_bytes(*argument.tensor, argument.name, purpose, &present->array);
  if (argument.role == Role::counter) return read_integers(*argument.tensor, argument.name, purpose, &present->array);
  return read_array(*argument.tensor, argument.name, purpose, &present->array);
}

Status check_device(const Present& present, const Present& x) {
  if (present.array.device == x.array.device) return {};
  return invalid(present.argument->name, " is on ", device_text(present.array.device), "; expected ",
                 device_text(x.array.device), ", where ", x.argument->name, " is");
}

Status check_dtype(const Present& present, const Present& x) {
  const Role role = present.argument->role;
  if (role == Role::bits || role == Role::counter) return {};
  const DType found = present.array.dtype, dtype = x.array.dtype;
  const DType accumulator = accumulator_of(dtype);
  const bool has_dtype_of_x = role <= Role::parameter;
  const bool either = role == Role::sum || role == Role::parameter;  // of x's dtype and the accumulator's
  const bool narrower = role == Role::gradient && dtype == DType::f32;
  if (found == (has_dtype_of_x ? dtype : accumulator)) return {};
  if ((either && found == accumulator) || (narrower && size_of(found) == 2)) return {};
  return invalid(present.argument->name, " has dtype ", name_of(found), "; expected ",
                 name_of(has_dtype_of_x ? dtype : accumulator),
                 either && accumulator != dtype ? text(" or ", name_of(accumulator)) : "",
                 narrower ? ", float16 or bfloat16" : "", " as ", x.argument->name, " has dtype ", name_of(dtype));
}

Status check_device_and_dtype(const Present& present, const Present& x) {
  NORMACT_TRY(check_device(present, x));
  return check_dtype(present, x);
}

Status check_bits(const Present& present, const Present& x, int orders) {
  const Memory& bits = present.array;
  const int64_t size = x.array.size;
  const int64_t shape[] = {size / 8 + (size % 8 != 0), 1};
  if (bits.ndim < 1 || bits.ndim > orders || bits.size != shape[0] || bits.shape[0] != shape[0]) {
    return invalid(present.argument->name, " has shape ", tuple_text(bits.ndim, bits.shape), "; expected ",
                   tuple_text(1, shape), orders > 1 ? text(" or ", tuple_text(2, shape)) : std::string(),
                   ", a bit for each of ", x.argument->name, "'s ", size, " elements");
  }
  if (shape[0] <= 1 || bits.strides == nullptr || bits.strides[0] == 1) return {};
  constexpr int64_t kOnes[] = {1, 1};
  return invalid(present.argument->name, " has strides ", tuple_text(bits.ndim, bits.strides),
                 "; expected contiguous memory, strides ", tuple_text(bits.ndim, kOnes));
}

bool align(const Array& array, int ndim, const int64_t* shape, uint64_t dims, int64_t* stride) {
  // The strides of an empty array mean nothing and were not checked.
  const int64_t* given = array.size == 0 ? nullptr : array.strides;
  int own = array.ndim;
  int64_t contiguous = 1;
  for (int d = ndim - 1; d >= 0; --d) {
    if (!contains(dims, static_cast<uint64_t>(d))) {
      stride[d] = 0;
      continue;
    }
    if (--own < 0 || array.shape[own] != shape[d]) return false;
    stride[d] = given != nullptr ? given[own] : contiguous;
    contiguous *= shape[d];
  }
  return own == 0;
}

Status wrong_shape(const Present& present, int ndim, const int64_t* shape, uint64_t dims, const std::string& which) {
  int64_t expected[kMaxTensorDims];
  int count = 0;
  for (int d = 0; d < ndim; ++d) {
    if (contains(dims, static_cast<uint64_t>(d))) expected[count++] = shape[d];
  }
  return invalid(present.argument->name, " has shape ", tuple_text(present.array.ndim, present.array.shape),
                 "; expected ", tuple_text(count, expected), ", ", which);
}

bool find_axis(int64_t given, int ndim, int* axis) {
  const int64_t found = given < 0 ? given + ndim : given;
  *axis = static_cast<int>(found);
  return found >= 0 && found < ndim;
}

Status no_such_axis(const std::string& field, int64_t given, const Present& x) {
  return invalid(field, " is ", given, "; expected an axis of ", x.argument->name, ", which has ", x.array.ndim,
                 " dimensions");
}

Status too_many_dims(const Present& x, const char* which) {
  return not_supported(x.argument->name, " has shape ", tuple_text(x.array.ndim, x.array.shape),
                       ", of which more than ", kMaxDims, which,
                       " dimensions remain after merging those that lie evenly in memory; make the tensors contiguous");
}

Status check_overlaps(std::span<const Present> all) {
  for (const Present& output : all) {
    const char* name = output.argument->name;
    if (!output.argument->output || output.array.size == 0) continue;
    const Footprint footprint(output.array);
    if (overlaps_itself(footprint)) [[unlikely]] {
      return invalid(name,
                     " overlaps itself: its strides lead to one address from several indices; expected an "
                     "output whose elements are apart");
    }
    for (const Present& other : all) {
      if (&output == &other || other.array.size == 0 || ranges_are_apart(output.array, other.array)) continue;
      const bool allowed = contains(output.argument->may_be, other.place);
      if (allowed && same_tensor(output.array, other.array)) continue;
      if (!overlap(footprint, Footprint(other.array))) continue;
      return invalid(name, " overlaps ", other.argument->name, allowed ? " without being the same tensor" : "",
                     "; expected separate memory", allowed ? " or the very same data, shape and strides" : "");
    }
  }
  return {};
}

}  // namespace normact
