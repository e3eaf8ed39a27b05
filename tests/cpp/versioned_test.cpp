// SPDX-License-Identifier: Apache-2.0
#include "core/versioned.h"

#include <cstring>

#include "check.h"

namespace {

// A struct as its first version had it, as this version has it, and as a later one has it.
struct First {
  size_t struct_size;
  int64_t a;
};
struct Current {
  size_t struct_size;
  int64_t a, b;
};
struct Later {
  size_t struct_size;
  int64_t a, b, c;
};

normact::Status read(const void* given, Current* out) {
  return normact::read_struct(static_cast<const Current*>(given), sizeof(First), "desc", out);
}

TEST(completes_an_older_struct_with_zeros) {
  const First first{sizeof(First), 7};
  Current out{0, 1, 2};
  CHECK(read(&first, &out).ok());
  CHECK_EQ(out.a, 7);
  CHECK_EQ(out.b, 0);
}

TEST(copies_a_struct_of_this_version) {
  const Current current{sizeof(Current), 7, 8};
  Current out{};
  CHECK(read(&current, &out).ok());
  CHECK_EQ(out.a, 7);
  CHECK_EQ(out.b, 8);
}

TEST(accepts_a_later_struct_whose_new_fields_are_zero) {
  Later later{sizeof(Later), 7, 8, 0};
  Current out{};
  CHECK(read(&later, &out).ok());
  CHECK_EQ(out.b, 8);
  later.c = 1;
  const normact::Status status = read(&later, &out);
  CHECK(status.code() == NORMACT_NOT_SUPPORTED);
  CHECK(status.message().find("desc->struct_size") == 0);
}

TEST(refuses_garbage) {
  Current out{};
  CHECK(read(nullptr, &out).code() == NORMACT_INVALID_ARGUMENT);
  for (size_t size : {size_t{0}, size_t{1}, sizeof(First) - 1, size_t{4097}, size_t{0} - 1}) {
    const Current current{size, 7, 8};
    const normact::Status status = read(&current, &out);
    CHECK(status.code() == NORMACT_INVALID_ARGUMENT);
    CHECK(status.message().find("desc->struct_size is " + std::to_string(size)) == 0);
  }
}

}  // namespace
