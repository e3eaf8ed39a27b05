// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace normact::cpu {

struct Range {
  int64_t begin;
  int64_t end;
};

}  // namespace normact::cpu
