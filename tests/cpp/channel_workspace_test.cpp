// SPDX-License-Identifier: Apache-2.0
// What a query says of batch, group and instance norms on a GPU, beside what the call needs: the GPU's own way from
// tensors to a plan, with launchers that launch nothing.
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <numeric>
#include <random>
#include <vector>

#include "core/read_batch_norm.h"
#include "core/read_group_norm.h"
#include "cuda/channel.cpp"
#include "plan_cases.h"
#include "untouched_tensor.h"

namespace normact::cuda {

namespace {
const DeviceInfo* device = &kHopper;
}

Status device_info(int, const DeviceInfo** info) {
  *info = device;
  return {};
}
DeviceGuard::~DeviceGuard() = default;
Status DeviceGuard::enter(int) { return {}; }
Status launch_layout_copy(const LayoutCopy&, const Launch&) { return {}; }

#define NORMACT_DRY_LAUNCHERS(dtype)                                                                             \
  Status launch_channel_forward_##dtype(const ChannelForward&, const ChannelPlan&, const Launch&) { return {}; } \
  Status launch_channel_moments_##dtype(const ChannelMoments&, const ChannelPlan&, const Launch&) { return {}; } \
  Status launch_channel_backward_##dtype(const ChannelInputGradient&, ChannelPasses, const ChannelPlan&,         \
                                         const Launch&) {                                                        \
    return {};                                                                                                   \
  }
NORMACT_DRY_LAUNCHERS(f64)
NORMACT_DRY_LAUNCHERS(f32)
NORMACT_DRY_LAUNCHERS(f16)
NORMACT_DRY_LAUNCHERS(bf16)
Status launch_channel_merge_f32(const ChannelMerge&, const Launch&) { return {}; }
Status launch_channel_merge_f64(const ChannelMerge&, const Launch&) { return {}; }

}  // namespace normact::cuda

namespace {

using namespace normact;

/// A random norm: of (n, c, h, w) in some layout, as one of the frameworks' functions or of this library's.
class RandomNorm {
 public:
  explicit RandomNorm(uint32_t seed) : random_(seed) {
    shape_ = {one_of({1, 2, 8, 33, 64, 256}), one_of({1, 3, 8, 16, 32, 64, 100, 256, 320, 1024, 2048}),
              one_of({1, 2, 7, 8, 14, 16, 28, 56, 112}), one_of({1, 2, 7, 8, 14, 16, 17, 28, 56, 112})};
    bits_ = static_cast<int>(one_of({16, 16, 32, 32, 64}));
    x_strides_ = layout();
    phase_ = one_of({0, 0, 16, 8, bits_ / 8});
    alike_ = one_of({0, 1, 1});
    x_ = like_x(1);
    const int parameter_bits = std::max(bits_, 32);
    weight_ = UntouchedTensor(2, {shape_[1]}, {1}, parameter_bits);
    activation_ = static_cast<int32_t>(one_of(
        {NORMACT_ACTIVATION_IDENTITY, NORMACT_ACTIVATION_RELU, NORMACT_ACTIVATION_SILU, NORMACT_ACTIVATION_GELU}));
    groups_ = one_of({0, 0, 1, 1, 8, 32, shape_[1]});
    if (groups_ > 0 && shape_[1] % groups_ != 0) groups_ = 1;
    const Ints sets = groups_ > 0 ? Ints{shape_[0], groups_} : Ints{shape_[1]};
    mean_ = UntouchedTensor(3, sets, dense_strides(sets), parameter_bits);
    rstd_ = UntouchedTensor(4, sets, dense_strides(sets), parameter_bits);
    running_mean_ = UntouchedTensor(5, {shape_[1]}, {1}, parameter_bits);
    running_var_ = UntouchedTensor(6, {shape_[1]}, {1}, parameter_bits);
    sm_margin_ = static_cast<int>(one_of({0, 0, 8, 131}));
  }

  /// Whether the call has all that it needs.
  bool forward() {
    UntouchedTensor y = like_x(7), addend = one_of({0, 1}) == 1 ? like_x(8) : UntouchedTensor();
    UntouchedTensor mask =
        activation_ == NORMACT_ACTIVATION_RELU && one_of({0, 1}) == 1 ? bits_of_x() : UntouchedTensor();
    const auto read = [&](Purpose purpose, ChannelForward* problem) {
      Device where;
      if (groups_ > 0) {
        const normact_group_norm_desc desc = group_desc();
        const normact_group_norm_forward_args args{sizeof args, x_.get(), weight_.get(), nullptr,    nullptr,
                                                   nullptr,     y.get(),  mean_.get(),   rstd_.get()};
        return read_group_norm_forward(&desc, &args, purpose, problem, &where);
      }
      const normact_batch_norm_desc desc = batch_desc();
      const normact_batch_norm_forward_args args{
          sizeof args,        x_.get(), weight_.get(), nullptr,     addend.get(), running_mean_.get(),
          running_var_.get(), nullptr,  y.get(),       mean_.get(), rstd_.get(),  mask.get()};
      return read_batch_norm_forward(&desc, &args, purpose, problem, &where);
    };
    return has_all<ChannelForward>(read, cuda::channel_forward_workspace, cuda::channel_forward);
  }

  bool backward() {
    UntouchedTensor dy = like_x(7), dx = like_x(8), dweight = UntouchedTensor(9, {shape_[1]}, {1}, std::max(bits_, 32));
    const auto read = [&](Purpose purpose, ChannelBackward* problem) {
      Device where;
      if (groups_ > 0) {
        const normact_group_norm_desc desc = group_desc();
        const normact_group_norm_backward_args args{sizeof args, dy.get(),    x_.get(), weight_.get(), nullptr,
                                                    mean_.get(), rstd_.get(), dx.get(), dweight.get(), nullptr};
        return read_group_norm_backward(&desc, &args, purpose, problem, &where);
      }
      const normact_batch_norm_desc desc = batch_desc();
      normact_batch_norm_backward_args args{};
      args.struct_size = sizeof args;
      args.dy = dy.get();
      args.x = x_.get();
      args.weight = weight_.get();
      args.mean = mean_.get();
      args.rstd = rstd_.get();
      args.dx = dx.get();
      args.dweight = dweight.get();
      return read_batch_norm_backward(&desc, &args, purpose, problem, &where);
    };
    return has_all<ChannelBackward>(read, cuda::channel_backward_workspace, cuda::channel_backward);
  }

 private:
  int64_t one_of(std::initializer_list<int64_t> values) { return values.begin()[random_() % values.size()]; }

  /// NCHW, channels last, a crop, some of the channels, every second column, any order of the axes.
  Ints layout() {
    std::vector<size_t> order{0, 1, 2, 3};
    Ints around = shape_;
    int64_t step = 1;
    switch (one_of({0, 0, 0, 1, 1, 2, 3, 4, 5})) {
      case 1: order = {0, 2, 3, 1}; break;
      case 2: around[3] += 2; break;
      case 3: around[1] += 8; break;
      case 4: step = 2; break;
      case 5: std::shuffle(order.begin(), order.end(), random_); break;
      default: break;
    }
    Ints strides(4);
    for (size_t k = 4; k-- > 0; step *= around[order[k]]) strides[order[k]] = step;
    return strides;
  }
  UntouchedTensor like_x(uintptr_t slot) {
    const bool alike = alike_ == 1;
    return {slot, shape_, alike ? x_strides_ : layout(), bits_, alike ? phase_ : one_of({0, 8, 16})};
  }
  UntouchedTensor bits_of_x() {
    const int64_t bytes = (std::accumulate(shape_.begin(), shape_.end(), int64_t{1}, std::multiplies<>()) + 7) / 8;
    return {10, {bytes}, {1}, 8, 0, true};
  }
  [[nodiscard]] normact_group_norm_desc group_desc() const {
    return {sizeof(normact_group_norm_desc), 1, activation_, groups_, 1e-5, 0.1, 0.25, 1, 20};
  }
  [[nodiscard]] normact_batch_norm_desc batch_desc() const {
    return {sizeof(normact_batch_norm_desc), 1, 1, 1e-5, 0.1, 0, activation_, 0.25, 1, 20};
  }

  template <class Problem, class Read, class Query, class Call>
  bool has_all(const Read& read, const Query& query, const Call& call) {
    Problem asked{}, problem{};
    if (!read(Purpose::query, &asked).ok() || !read(Purpose::run, &problem).ok()) return true;  // one value a channel
    cuda::Launch launch{0, nullptr, {nullptr, 0}, NORMACT_ROW_AUTO, sm_margin_};
    size_t bytes = 0;
    CHECK(query(asked, launch, &bytes).ok());
    launch.workspace = {reinterpret_cast<void*>(uintptr_t{99} << 44), bytes};
    ++calls;
    const Status status = call(problem, launch);
    return status.ok() || status.code() != NORMACT_WORKSPACE_TOO_SMALL;
  }

  std::mt19937 random_;
  Ints shape_, x_strides_;
  int bits_;
  int64_t phase_, alike_, groups_;
  int32_t activation_;
  int sm_margin_;
  UntouchedTensor x_, weight_, mean_, rstd_, running_mean_, running_var_;

 public:
  static inline int calls = 0;
};

TEST(a_query_says_what_any_call_needs) {
  for (const DeviceInfo* device : {&kHopper, &kAmpere, &kTuring}) {
    cuda::device = device;
    for (uint32_t seed = 0; seed < 10000; ++seed) {
      RandomNorm norm(seed);
      CHECK(norm.forward());
      CHECK(norm.backward());
    }
  }
  CHECK(RandomNorm::calls > 40000);
}

}  // namespace
