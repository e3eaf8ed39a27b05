// SPDX-License-Identifier: Apache-2.0
#include "core/overlap.h"

#include <algorithm>
#include <random>
#include <vector>

#include "check.h"

namespace {

using normact::DType;
using normact::Footprint;

// A tensor of three dimensions at an address that is never touched.
struct View {
  uintptr_t address;
  DType dtype;
  std::vector<int64_t> shape, strides;

  Footprint footprint() const {
    return Footprint(reinterpret_cast<void*>(address), normact::size_of(dtype), 3, shape.data(), strides.data());
  }

  // Every byte, once for each index that names it.
  std::vector<uintptr_t> bytes() const {
    std::vector<uintptr_t> all;
    const auto size = static_cast<int64_t>(normact::size_of(dtype));
    for (int64_t i = 0; i < shape[0]; ++i) {
      for (int64_t j = 0; j < shape[1]; ++j) {
        for (int64_t k = 0; k < shape[2]; ++k) {
          const int64_t at = i * strides[0] + j * strides[1] + k * strides[2];
          for (int64_t b = 0; b < size; ++b) all.push_back(address + static_cast<uintptr_t>(at * size + b));
        }
      }
    }
    std::sort(all.begin(), all.end());
    return all;
  }
};

bool share_a_byte(const View& a, const View& b) {
  const std::vector<uintptr_t> p = a.bytes(), q = b.bytes();
  std::vector<uintptr_t> common;
  std::set_intersection(p.begin(), p.end(), q.begin(), q.end(), std::back_inserter(common));
  return !common.empty();
}

View random_view(std::mt19937& random) {
  const auto pick = [&random](int low, int high) { return std::uniform_int_distribution<int64_t>(low, high)(random); };
  const DType dtypes[] = {DType::f64, DType::f32, DType::f16};
  const DType dtype = dtypes[pick(0, 2)];
  const uintptr_t address = 4096 + static_cast<uintptr_t>(pick(0, 40) * normact::size_of(dtype));
  return {address, dtype, {pick(1, 4), pick(1, 4), pick(1, 5)}, {pick(-20, 20), pick(-9, 9), pick(-3, 3)}};
}

TEST(agrees_with_enumeration) {
  std::mt19937 random(1);
  int overlapping = 0, interleaved = 0;
  for (int i = 0; i < 20000; ++i) {
    const View a = random_view(random), b = random_view(random);
    const bool expected = share_a_byte(a, b);
    const Footprint fa = a.footprint(), fb = b.footprint();
    CHECK_EQ(overlap(fa, fb), expected);
    CHECK_EQ(overlap(fb, fa), expected);
    overlapping += expected;
    interleaved += !expected && fa.begin < fb.end && fb.begin < fa.end;
  }
  CHECK(overlapping > 1000);  // the cases are not trivial
  CHECK(interleaved > 1000);
}

TEST(footprints_reach_from_the_first_to_the_last_byte) {
  std::mt19937 random(2);
  for (int i = 0; i < 1000; ++i) {
    const View view = random_view(random);
    const std::vector<uintptr_t> bytes = view.bytes();
    CHECK_EQ(view.footprint().begin, bytes.front());
    CHECK_EQ(view.footprint().end, bytes.back() + 1);
  }
}

TEST(never_misses_a_self_overlap) {
  std::mt19937 random(3);
  int apart = 0;
  for (int i = 0; i < 20000; ++i) {
    const View view = random_view(random);
    const std::vector<uintptr_t> bytes = view.bytes();
    const bool repeats = std::adjacent_find(bytes.begin(), bytes.end()) != bytes.end();
    const bool found = overlaps_itself(view.footprint());
    CHECK(found || !repeats);
    apart += !found;
  }
  CHECK(apart > 1000);
}

TEST(accepts_the_usual_views_of_one_buffer) {
  const uintptr_t base = 1 << 20;
  const View left{base, DType::f32, {1000, 1000, 512}, {1024000, 1024, 1}};
  const View right{base + 512 * 4, DType::f32, {1000, 1000, 512}, {1024000, 1024, 1}};
  const View wider{base + 511 * 4, DType::f32, {1000, 1000, 512}, {1024000, 1024, 1}};
  CHECK(!overlap(left.footprint(), right.footprint()));
  CHECK(overlap(left.footprint(), wider.footprint()));
  const View even{base, DType::f16, {1, 1000, 500}, {0, 1000, 2}};
  const View odd{base + 2, DType::f16, {1, 1000, 500}, {0, 1000, 2}};
  CHECK(!overlap(even.footprint(), odd.footprint()));
  CHECK(!overlaps_itself(left.footprint()));
  CHECK(overlaps_itself(View{base, DType::f32, {1, 10, 4}, {0, 3, 1}}.footprint()));
  CHECK(overlaps_itself(View{base, DType::f32, {1, 10, 4}, {0, 0, 1}}.footprint()));
}

TEST(footprints_of_any_rank_are_short) {
  const std::vector<int64_t> cube(40, 2);
  const Footprint dense(reinterpret_cast<void*>(4096), 4, 40, cube.data(), nullptr);
  CHECK_EQ(dense.count, 1);
  CHECK_EQ(dense.end - dense.begin, uint64_t{4} << 40);
  CHECK(!overlaps_itself(dense));
  const int64_t shape[] = {3, 4, 5}, transposed[] = {20, 1, 4}, gap[] = {-30, 1, 4};
  CHECK_EQ(Footprint(reinterpret_cast<void*>(4096), 4, 3, shape, transposed).count, 1);
  CHECK_EQ(Footprint(reinterpret_cast<void*>(4096), 4, 3, shape, gap).count, 2);
}

}  // namespace
