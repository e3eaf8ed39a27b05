// SPDX-License-Identifier: Apache-2.0
// What must not move a bit: the number of threads, the other rows, alignment, strides, and outputs in an input's
// memory.
#include "cpu_problem.h"

namespace {

using namespace fixture;

constexpr std::pair<int64_t, int64_t> kShapes[] = {{1, 5},    {70, 16},   {37, 33},   {531, 100}, {130, 700},
                                                   {9, 1025}, {70, 2500}, {3, 40000}, {5, 70001}, {900, 7}};

/// forward and backward of the problem as it stands.
void run(Problem& p) {
  p.forward();
  p.backward();
}

/// The same inputs, another placement.
Problem moved(const Problem& p, Placement place) {
  Options o = p.o;
  o.place = place;
  return Problem(o);  // the same seed, hence the same values
}

void check_same(const Problem& a, const Problem& b) {
  CHECK(a.y.same_bits(b.y));
  CHECK(a.mean.same_bits(b.mean));
  CHECK(a.rstd.same_bits(b.rstd));
  CHECK(a.dx.same_bits(b.dx));
  if (a.o.residual) CHECK(a.residual_out.same_bits(b.residual_out));
  if (a.o.weight) CHECK(a.dweight.same_bits(b.dweight));
  if (a.o.bias) CHECK(a.dbias.same_bits(b.dbias));
}

template <class Body>
void for_each_problem(Body body) {
  for_each_isa([&] {
    for (DType dtype : {DType::f32, DType::bf16}) {
      for (NormKind kind : {NormKind::layer, NormKind::rms}) {
        for (auto [rows, cols] : kShapes) {
          Options o;
          o.kind = kind, o.dtype = dtype, o.rows = rows, o.cols = cols, o.residual = rows % 2 == 0;
          o.bias_dtype = dtype, o.mean = 3;
          for (auto activation : {NORMACT_ACTIVATION_IDENTITY, NORMACT_ACTIVATION_GELU}) {
            o.activation = activation;
            const int before = check::failures;
            body(o);
            if (check::failures == before) continue;
            std::cerr << "  " << name_of(dtype) << " " << rows << "x" << cols << ", activation " << activation << "\n";
          }
        }
      }
    }
  });
}

TEST(the_number_of_threads_moves_no_bit) {
  for_each_problem([](const Options& o) {
    normact::cpu::set_num_threads(1);
    Problem one(o);
    run(one);
    for (int threads : {2, 3, 8}) {
      normact::cpu::set_num_threads(threads);
      Problem many(o);
      run(many);
      check_same(one, many);
    }
  });
}

TEST(the_other_rows_move_no_bit) {
  for_each_problem([](const Options& o) {
    normact::cpu::set_num_threads(2);
    Problem all(o);
    run(all);
    for (int64_t first : {int64_t{0}, o.rows / 3, o.rows - 1}) {
      const int64_t count = std::min<int64_t>(o.rows - first, 1 + first % 6);
      Problem some(o);
      auto forward = some.forward_problem();
      auto backward = some.backward_problem();
      const auto cut = [&](normact::RowProblem& p, std::initializer_list<Operand*> operands) {
        p.geometry.rows = p.geometry.row_shape[0] = count;
        for (Operand* operand : operands) {
          if (!operand->data) continue;
          const int64_t bytes = first * operand->row_stride[0] * size_of(operand->dtype);
          operand->data = static_cast<char*>(operand->data) + bytes;
        }
      };
      cut(forward, {&forward.x, &forward.residual, &forward.y, &forward.residual_out, &forward.mean, &forward.rstd});
      cut(backward, {&backward.dy, &backward.x, &backward.mean, &backward.rstd, &backward.dresidual, &backward.dx});
      Problem::forward(forward);
      Problem::backward(backward);
      for (int64_t r = first; r < first + count; ++r) {
        CHECK(some.y.same_bits(r, all.y, r));
        CHECK(some.rstd.same_bits(r, all.rstd, r));
        CHECK(some.dx.same_bits(r, all.dx, r));
      }
    }
  });
}

TEST(alignment_and_strides_move_no_bit) {
  for_each_problem([](const Options& o) {
    normact::cpu::set_num_threads(2);
    Problem aligned(o);
    run(aligned);
    for (Placement place : {Placement{1, 1}, Placement{1, 7}, Placement{1, 13}, Placement{2, 0}, Placement{5, 3}}) {
      Problem other = moved(aligned, place);
      run(other);
      check_same(aligned, other);
    }
  });
}

TEST(an_output_may_be_an_input) {
  for_each_problem([](const Options& options) {
    for (int64_t col_stride : {1, 2}) {
      Options o = options;
      o.place.col_stride = col_stride;
      Problem apart(o);
      run(apart);
      for (bool first : {true, false}) {
        Problem shared(o);
        auto forward = shared.forward_problem();
        forward.y = forward.x;
        if (o.residual) forward.residual_out = forward.residual;
        if (o.residual && !first) std::swap(forward.y, forward.residual_out);
        Problem::forward(forward);
        Tensor& y = o.residual && !first ? shared.residual : shared.x;
        CHECK(y.same_bits(apart.y));
        Problem gradients(o);
        gradients.forward();
        auto backward = gradients.backward_problem();
        backward.dx = first ? backward.dy : o.residual ? backward.dresidual : backward.x;
        Problem::backward(backward);
        Tensor& dx = first ? gradients.dy : o.residual ? gradients.dresidual : gradients.x;
        CHECK(dx.same_bits(apart.dx));
        CHECK(gradients.dweight.same_bits(apart.dweight));
      }
    }
  });
}

TEST(rows_and_columns_may_have_several_dimensions) {
  for_each_isa([] {
    Options o;
    o.rows = 6, o.cols = 60, o.dtype = DType::f16, o.weight_dtype = DType::f16;
    Problem flat(o);
    run(flat);
    // The same memory, told as (2, 3) rows and (4, 15) columns.
    Problem split(o);
    const auto retell = [](normact::RowProblem& p, std::initializer_list<Operand*> operands) {
      p.contiguous = false;
      p.geometry.row_ndim = p.geometry.col_ndim = 2;
      p.geometry.row_shape[0] = 2, p.geometry.row_shape[1] = 3;
      p.geometry.col_shape[0] = 4, p.geometry.col_shape[1] = 15;
      for (Operand* operand : operands) {
        const int64_t row = operand->row_stride[0], col = operand->col_stride[0];
        operand->row_stride[0] = 3 * row, operand->row_stride[1] = row;
        operand->col_stride[0] = 15 * col, operand->col_stride[1] = col;
      }
    };
    auto f = split.forward_problem();
    retell(f, {&f.x, &f.weight, &f.bias, &f.y, &f.mean, &f.rstd});
    Problem::forward(f);
    auto b = split.backward_problem();
    retell(b, {&b.dy, &b.x, &b.weight, &b.mean, &b.rstd, &b.dx, &b.dweight, &b.dbias});
    Problem::backward(b);
    check_same(flat, split);
  });
}

}  // namespace
