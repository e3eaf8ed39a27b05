// SPDX-License-Identifier: Apache-2.0
// A sum of any number of terms that keeps its digits. Equal terms of fp32, added one to the other, are off by up to one
// in a thousand for 10^5 of them, and one in ten for 10^7.
#pragma once

#include "math/hd.h"

namespace normact {

/// Sixteen terms make up one of the next level, of which sixteen do again. A level of a number, or of a vector, that
/// begins as zeros. Unlike compensated sums it gives Inf and NaN where the terms do.
template <class V>
class CascadeSum {
 public:
  NORMACT_HD void add(V term) {
    level_[0] += term;
    ++count_;
    carry<0>();
  }
  NORMACT_HD V total() const { return above<0>() + level_[0]; }

 private:
  static constexpr int kLevels = 5;

  template <int kLevel>
  NORMACT_HD void carry() {
    if constexpr (kLevel + 1 < kLevels) {
      if (count_ % (16u << (4 * kLevel)) != 0) return;
      level_[kLevel + 1] += level_[kLevel];
      level_[kLevel] = V{};
      carry<kLevel + 1>();
    }
  }
  /// The sum of the levels above one, the highest first.
  template <int kLevel>
  NORMACT_HD V above() const {
    if constexpr (kLevel + 2 < kLevels) {
      return above<kLevel + 1>() + level_[kLevel + 1];
    } else {
      return level_[kLevel + 1];
    }
  }

  V level_[kLevels] = {};
  unsigned count_ = 0;
};

}  // namespace normact
