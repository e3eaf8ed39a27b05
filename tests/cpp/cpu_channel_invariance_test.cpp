// SPDX-License-Identifier: Apache-2.0
// The bits of batch, group and instance norm depend neither on the number of threads nor, for groups, on the other
// samples; and outputs may be inputs.
#include "channel_call.h"

namespace {

using namespace channel;

void run(Call& call, int threads) {
  normact_set_num_threads(threads);
  call.forward();
  call.backward();
}

void same_bits(const View& a, const View& b, const char* what) {
  if (!a.pointer() || a.memory.same_bits(b.memory)) return;
  check::fail(__FILE__, __LINE__, std::string(what) + " differs");
}

/// The same for tensors of x's shape that may have other things between their elements.
void same_values(const Call& call, const View& a, const View& b, const char* what) {
  bool same = true;
  call.for_all([&](auto... i) { same = same && call.value(a, i...) == call.value(b, i...); });
  if (!same) check::fail(__FILE__, __LINE__, std::string(what) + " differs");
}

void check_threads(const Options& o) {
  Call one(o);
  run(one, 1);
  for (const int threads : {2, 7}) {
    Call many(o);
    run(many, threads);
    same_bits(one.y, many.y, "y");
    same_bits(one.mean, many.mean, "mean");
    same_bits(one.rstd, many.rstd, "rstd");
    same_bits(one.running_mean, many.running_mean, "running_mean");
    same_bits(one.running_var, many.running_var, "running_var");
    same_bits(one.dx, many.dx, "dx");
    same_bits(one.daddend, many.daddend, "daddend");
    same_bits(one.dweight, many.dweight, "dweight");
    same_bits(one.dbias, many.dbias, "dbias");
    CHECK(one.mask == many.mask);
  }
}

TEST(threads_move_no_bits) {
  const int64_t shapes[][4] = {{2, 6, 100, 130}, {50, 6, 7, 33}, {3, 1300, 5, 9}, {2, 6, 1, 40000}, {6000, 24, 1, 1}};
  for (const Layout layout : {Layout::nchw, Layout::nhwc, Layout::channels_last, Layout::middle}) {
    for (const auto& s : shapes) {
      Options o;
      o.layout = layout;
      o.n = s[0], o.c = s[1], o.h = s[2], o.w = s[3];
      o.activation = NORMACT_ACTIVATION_RELU;
      o.slope = Slope::mask;
      o.addend = o.running = true;
      check_threads(o);
      if (layout == Layout::channels_last) {
        o.mask_goes_along = false;
        check_threads(o);
      }
      o.addend = o.running = false;
      o.slope = Slope::again;
      o.dtype = DType::bf16;
      o.activation = NORMACT_ACTIVATION_SILU;
      check_threads(o);
      for (const int64_t groups : {int64_t{2}, o.c}) {
        o.groups = groups;
        o.running = groups == o.c && o.h * o.w > 1;
        check_threads(o);
      }
    }
  }
}

TEST(samples_do_not_see_each_other) {
  for (const Layout layout : {Layout::nchw, Layout::nhwc}) {
    Options o;
    o.layout = layout;
    o.c = 12, o.h = 60, o.w = 70, o.groups = 3;
    o.n = 1;
    Call alone(o);
    o.n = 9;
    Call among(o);
    alone.for_all([&](auto... i) { alone.x.memory.set(0, alone.at(alone.x, i...), among.value(among.x, i...)); });
    alone.for_all([&](auto... i) { alone.dy.memory.set(0, alone.at(alone.dy, i...), among.value(among.dy, i...)); });
    for (int64_t c = 0; c < o.c; ++c) alone.weight.memory.set(0, c, among.weight.get(c));
    for (int64_t c = 0; c < o.c; ++c) alone.bias.memory.set(0, c, among.bias.get(c));
    run(alone, 3);
    run(among, 2);
    alone.for_all([&](auto... i) {
      CHECK_EQ(alone.value(alone.y, i...), among.value(among.y, i...));
      CHECK_EQ(alone.value(alone.dx, i...), among.value(among.dx, i...));
    });
  }
}

TEST(outputs_may_be_inputs) {
  for (const Layout layout : kLayouts) {
    for (const Slope slope : {Slope::again, Slope::mask}) {
      Options o;
      o.layout = layout;
      o.c = 20, o.h = 9, o.w = 30, o.n = 5;
      o.addend = true;
      o.slope = slope;
      o.activation = NORMACT_ACTIVATION_RELU;
      Call apart(o), together(o);
      apart.forward();
      apart.backward();
      const View x = [&] {
        View copy;
        copy.make(o.dtype, together.x.shape, together.x.strides);
        copy.memory.copy_from(together.x.memory);
        return copy;
      }();
      together.y.raw.data = together.x.raw.data;
      together.forward();
      same_values(apart, apart.y, together.x, "y in place of x");
      CHECK(apart.mask == together.mask);
      together.x.memory.copy_from(x.memory);
      together.dx.raw.data = together.x.raw.data;
      together.daddend.raw.data = together.dy.raw.data;
      together.backward();
      same_values(apart, apart.dx, together.x, "dx in place of x");
      same_values(apart, apart.daddend, together.dy, "daddend in place of dy");
      same_bits(apart.dweight, together.dweight, "dweight");
    }
  }
}

}  // namespace
