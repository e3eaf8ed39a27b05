// SPDX-License-Identifier: Apache-2.0
#include "core/overlap.h"

#include <algorithm>
#include <utility>

namespace normact {
namespace {

using Term = Footprint::Term;

// By rising stride. There are a handful, mostly in order already.
void sort_terms(Term* terms, int count) {
  for (int i = 1; i < count; ++i) {
    for (int j = i; j > 0 && terms[j].stride < terms[j - 1].stride; --j) std::swap(terms[j], terms[j - 1]);
  }
}

// Is target a sum of stride_i * n_i with 0 <= n_i <= last_i? The terms are sorted by rising stride and the first has
// stride 1, so that it gives every sum within its reach.
struct Search {
  const Term* terms;
  const uint64_t* reach;  // reach[i] = the largest sum that terms 0 to i give
  int budget;             // steps left; none left answers yes

  bool solve(int i, uint64_t target) {
    if (target > reach[i]) return false;
    if (i == 0 || budget-- <= 0) return true;
    for (uint64_t n = std::min(terms[i].last, target / terms[i].stride);; --n) {
      const uint64_t rest = target - n * terms[i].stride;
      if (rest > reach[i - 1]) return false;
      if (solve(i - 1, rest)) return true;
      if (n == 0) return false;
    }
  }
};

}  // namespace

Footprint::Footprint(const void* data, int64_t element_size, int ndim, const int64_t* shape, const int64_t* strides)
    : begin(reinterpret_cast<uintptr_t>(data)), element(static_cast<uint64_t>(element_size)), count(0), repeats(false) {
  end = begin + element;
  int64_t contiguous = 1;
  for (int d = ndim - 1; d >= 0; --d) {
    const int64_t given = strides != nullptr ? strides[d] : contiguous;
    contiguous *= shape[d];
    if (shape[d] == 1) continue;
    if (given == 0) {
      repeats = true;
      continue;
    }
    const uint64_t last = static_cast<uint64_t>(shape[d] - 1);
    const uint64_t step = (given < 0 ? -static_cast<uint64_t>(given) : static_cast<uint64_t>(given)) * element;
    if (given < 0) {
      begin -= step * last;
    } else {
      end += step * last;
    }
    terms[count++] = {step, last};
  }
  sort_terms(terms, count);
  int kept = 0;
  for (int i = 0; i < count; ++i) {
    if (kept > 0 && terms[i].stride == terms[kept - 1].stride * (terms[kept - 1].last + 1)) {
      terms[kept - 1].last = (terms[kept - 1].last + 1) * (terms[i].last + 1) - 1;
    } else {
      terms[kept++] = terms[i];
    }
  }
  count = kept;
}

bool overlaps_itself(const Footprint& footprint) {
  if (footprint.repeats) return true;
  uint64_t covered = footprint.element;
  for (int i = 0; i < footprint.count; ++i) {
    if (footprint.terms[i].stride < covered) return true;
    covered += footprint.terms[i].stride * footprint.terms[i].last;
  }
  return false;
}

// A byte that both share: a.begin + sum(i*s) + p = b.begin + sum(j*t) + q. With j and q counted from their other end
// all terms are positive: sum(i*s) + p + sum(j'*t) + q' = (b.end - 1) - a.begin. Terms of equal stride add up, so that
// two views of one buffer leave few terms, which nest, and the search has at most two ways to go at each.
bool overlap(const Footprint& a, const Footprint& b) {
  if (a.end <= b.begin || b.end <= a.begin) return false;
  Term terms[2 * Footprint::kMaxTerms + 1];
  terms[0] = {1, a.element - 1 + b.element - 1};
  std::copy(a.terms, a.terms + a.count, terms + 1);
  std::copy(b.terms, b.terms + b.count, terms + 1 + a.count);
  const int total = 1 + a.count + b.count;
  sort_terms(terms, total);
  int count = 1;
  for (int i = 1; i < total; ++i) {
    if (terms[i].stride == terms[count - 1].stride) {
      terms[count - 1].last += terms[i].last;
    } else {
      terms[count++] = terms[i];
    }
  }
  uint64_t reach[2 * Footprint::kMaxTerms + 1];
  for (int i = 0; i < count; ++i) reach[i] = (i > 0 ? reach[i - 1] : 0) + terms[i].stride * terms[i].last;
  constexpr int kBudget = 2000;  // a few microseconds, and only for operands whose ranges interleave
  return Search{terms, reach, kBudget}.solve(count - 1, b.end - 1 - a.begin);
}

}  // namespace normact
