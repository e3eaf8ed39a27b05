// SPDX-License-Identifier: Apache-2.0
// Outputs that go past the caches, as those of large calls do: the same bits as in place, where they never do, and not
// a byte beside them, at any alignment.
#include "cpu/partition.h"
#include "cpu_fixture.h"

namespace {

using namespace fixture;
using namespace normact;

constexpr DType kDtypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16};
constexpr int64_t kGuard = 256;           // bytes on either side
constexpr int64_t kSharedCols = 2000003;  // of rows so few that threads share each

/// An array of numbers between -4 and 4, or of guards; its first element lies so many elements past a line.
class Array {
 public:
  Array(DType dtype, int64_t count, int64_t past_line)
      : dtype_(dtype),
        count_(count),
        past_line_(past_line),
        memory_(static_cast<size_t>(count * size_of(dtype) + 64 + 3 * kGuard), '\x5a') {}

  void fill(unsigned seed) {
    constexpr int64_t kNumbers = 4096;
    Tensor numbers(dtype_, 1, kNumbers, kNumbers);
    for (int64_t i = 0; i < kNumbers; ++i) {
      numbers.set(0, i, (static_cast<double>(i) - kNumbers / 2.0 + 0.5) / (kNumbers / 8.0));
    }
    const auto bytes = static_cast<size_t>(size_of(dtype_));
    const char* const from = static_cast<const char*>(numbers.operand().data);
    uint32_t state = seed;
    for (int64_t i = 0; i < count_; ++i) {
      state = state * 1664525U + 1013904223U;
      std::memcpy(data() + static_cast<size_t>(i) * bytes, from + (state >> 20) * bytes, bytes);
    }
  }

  char* data() {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data()) + static_cast<uintptr_t>(kGuard);
    return memory_.data() + kGuard + (64 - address % 64) % 64 + past_line_ * size_of(dtype_);
  }
  Operand rows(int64_t cols) { return {data(), dtype_, {cols}, {1}}; }
  Operand columns() { return {data(), dtype_, {0}, {1}}; }
  View view(int64_t cols) { return {data(), dtype_, {cols, 1}}; }
  View last_dim() { return {data(), dtype_, {0, 1}}; }

  bool same(Array& other) {
    return std::memcmp(data(), other.data(), static_cast<size_t>(count_ * size_of(dtype_))) == 0;
  }
  bool guarded() {
    const char* const end = data() + count_ * size_of(dtype_);
    for (int64_t i = 1; i <= 64; ++i) {
      if (data()[-i] != '\x5a' || end[i - 1] != '\x5a') return false;
    }
    return true;
  }

 private:
  DType dtype_;
  int64_t count_, past_line_;
  std::vector<char> memory_;
};

/// The tensors of a call; the result is written to `out`, then in place of the first input.
struct Tensors {
  int64_t rows, cols;
  Array first, second, third, out, second_out;
  Array weight, bias, statistics, dweight, dbias;

  /// Calls of two tensors are then large enough.
  static int64_t rows_of(DType dtype, int64_t cols) { return cpu::kCachedBytes / (2 * cols * size_of(dtype)) + 3; }

  Tensors(DType dtype, int64_t columns, int64_t past_line)
      : rows(rows_of(dtype, columns)),
        cols(columns),
        first(dtype, rows * cols, 0),
        second(dtype, rows * cols, 0),
        third(dtype, rows * cols, 0),
        out(dtype, rows * cols, past_line),
        second_out(dtype, rows * cols, past_line),
        weight(accumulator(dtype), cols, 0),
        bias(accumulator(dtype), cols, 0),
        statistics(accumulator(dtype), rows, 0),
        dweight(accumulator(dtype), cols, 0),
        dbias(accumulator(dtype), cols, 0) {
    unsigned seed = 1;
    for (Array* array : {&first, &second, &third, &weight, &bias, &statistics}) array->fill(seed++);
#if defined(__x86_64__)
    CHECK(cpu::streams(2 * rows * cols * size_of(dtype)));
#endif
  }

  static DType accumulator(DType dtype) { return dtype == DType::f64 ? dtype : DType::f32; }

  void describe(RowProblem& p, DType dtype) const {
    p.geometry = {rows, cols, 1, 1, {rows}, {cols}};
    p.kind = NormKind::layer;
    p.dtype = p.io_dtype = dtype;
    p.contiguous = true;
    p.eps = 1e-5;
  }
  void describe(PointwiseProblem& p, DType dtype, normact_activation_kind kind, bool biased) const {
    p.geometry = biased ? PointwiseGeometry{rows * cols, 2, 1, {rows, cols}}
                        : PointwiseGeometry{rows * cols, 1, -1, {rows * cols}};
    p.activation.kind = kind;
    p.dtype = dtype;
    p.limit = INFINITY;
  }
};

template <class Body>
void for_each_call(std::initializer_list<int64_t> columns, Body body) {
  for_each_isa([&] {
    cpu::set_num_threads(2);
    for (DType dtype : kDtypes) {
      for (int64_t cols : columns) {
        const int64_t past_line = cols % 2 == 0 ? 1 : 0;  // the rows of others begin anywhere
        Tensors t(dtype, cols, past_line);
        const int before = check::failures;
        body(t, dtype);
        CHECK(t.out.guarded() && t.second_out.guarded());
        if (check::failures == before) continue;
        std::cerr << "  " << name_of(dtype) << " " << t.rows << "x" << cols << " past a line: " << past_line << "\n";
      }
    }
  });
}

/// Runs a backward with fresh workspace.
template <class Problem>
void backward(const Problem& p, size_t (*query)(const Problem&), Status (*run)(const Problem&, void*)) {
  std::vector<char> workspace(query(p) + 64);
  CHECK(run(p, workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64) % 64).ok());
}

TEST(row_norm_forward) {
  for_each_call({4096, 2051, kSharedCols}, [](Tensors& t, DType dtype) {
    for (auto kind : {NORMACT_ACTIVATION_IDENTITY, NORMACT_ACTIVATION_GELU}) {
      t.first.fill(1);
      RowForward p{};
      t.describe(p, dtype);
      p.activation.kind = kind;
      p.x = t.first.rows(t.cols), p.weight = t.weight.columns(), p.bias = t.bias.columns();
      p.y = t.out.rows(t.cols);
      CHECK(cpu::row_norm_forward(p).ok());
      p.y = p.x;
      CHECK(cpu::row_norm_forward(p).ok());
      CHECK(t.out.same(t.first));
    }
  });
}

TEST(row_norm_backward) {
  for_each_call({8192, 8195, kSharedCols}, [](Tensors& t, DType dtype) {
    for (auto kind : {NORMACT_ACTIVATION_IDENTITY, NORMACT_ACTIVATION_GELU}) {
      t.first.fill(1);
      RowBackward p{};
      t.describe(p, dtype);
      p.activation.kind = kind;
      p.dy = t.first.rows(t.cols), p.x = t.second.rows(t.cols), p.dresidual = t.third.rows(t.cols);
      p.weight = t.weight.columns(), p.dweight = t.dweight.columns();
      if (kind != NORMACT_ACTIVATION_IDENTITY) p.bias = t.bias.columns();
      p.mean = p.rstd = t.statistics.rows(1);
      p.dx = t.out.rows(t.cols);
      backward(p, cpu::row_norm_backward_workspace, cpu::row_norm_backward);
      p.dx = p.dy;
      p.dweight = t.dbias.columns();
      backward(p, cpu::row_norm_backward_workspace, cpu::row_norm_backward);
      CHECK(t.out.same(t.first));
      CHECK(t.dweight.same(t.dbias));
    }
  });
}

TEST(pointwise_forward) {
  for_each_call({4096, 1001}, [](Tensors& t, DType dtype) {
    for (auto kind : {NORMACT_ACTIVATION_RELU, NORMACT_ACTIVATION_GELU}) {
      for (bool gated : {false, true}) {
        t.first.fill(1);
        std::vector<uint8_t> mask(static_cast<size_t>(t.rows * t.cols / 8 + 1)), mask_in_place(mask.size());
        const bool biased = kind == NORMACT_ACTIVATION_GELU, masked = !biased && !gated;
        PointwiseForward p{};
        t.describe(p, dtype, kind, biased);
        const auto view = [&](Array& a) { return biased ? a.view(t.cols) : a.view(1); };
        p.gated = gated;
        p.x = view(t.first);
        if (gated) p.up = view(t.second);
        if (biased) p.bias = t.bias.last_dim();
        if (masked) p.mask = mask.data();
        p.y = view(t.out);
        CHECK(cpu::pointwise_forward(p).ok());
        p.y = p.x;
        if (masked) p.mask = mask_in_place.data();
        CHECK(cpu::pointwise_forward(p).ok());
        CHECK(t.out.same(t.first));
        CHECK(mask == mask_in_place);
      }
    }
  });
}

TEST(pointwise_backward) {
  for_each_call({4096, 1001}, [](Tensors& t, DType dtype) {
    for (bool biased : {false, true}) {
      for (bool gated : {false, true}) {
        t.first.fill(1);
        t.second.fill(2);
        PointwiseBackward p{};
        t.describe(p, dtype, NORMACT_ACTIVATION_SILU, biased);
        const auto view = [&](Array& a) { return biased ? a.view(t.cols) : a.view(1); };
        p.gated = gated;
        p.dy = view(t.third), p.x = view(t.first);
        if (gated) p.up = view(t.second);
        if (biased) p.bias = t.bias.last_dim(), p.dbias = t.dweight.last_dim();
        p.dx = view(t.out);
        if (gated) p.dup = view(t.second_out);
        backward(p, cpu::pointwise_backward_workspace, cpu::pointwise_backward);
        if (biased) p.dbias = t.dbias.last_dim();
        p.dx = p.x;
        if (gated) p.dup = p.up;
        backward(p, cpu::pointwise_backward_workspace, cpu::pointwise_backward);
        CHECK(t.out.same(t.first));
        if (gated) CHECK(t.second_out.same(t.second));
        if (biased) CHECK(t.dweight.same(t.dbias));
      }
    }
  });
}

}  // namespace
