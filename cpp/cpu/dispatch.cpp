// SPDX-License-Identifier: Apache-2.0
#include "cpu/dispatch.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstdlib>
#include <cstring>
#include <string>

#include "cpu/backend.h"
#include "cpu/channel_kernels.h"

namespace normact::cpu {
namespace {

struct Candidate {
  const Isa* isa;
  bool available;
};

struct Selection {
  const Isa* isa = nullptr;
  std::string error;
};

#if defined(__x86_64__)
// Not every compiler's __builtin_cpu_supports knows the name.
bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

Selection select() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const Candidate candidates[] = {{&kBaselineIsa, true}, {&kAvx2Isa, avx2}, {&kAvx512Isa, avx512}};
#elif defined(__aarch64__)
  const Candidate candidates[] = {{&kNeonIsa, true}};
#else
  const Candidate candidates[] = {{&kBaselineIsa, true}};
#endif
  Selection selection;
  std::string names;
  const char* wanted = std::getenv("NORMACT_CPU_ISA");
  if (wanted && !*wanted) wanted = nullptr;
  for (const Candidate& candidate : candidates) {
    if (!candidate.available) continue;
    names += (names.empty() ? "" : ", ") + std::string(candidate.isa->name);
    if (!wanted || std::strcmp(wanted, candidate.isa->name) == 0) selection.isa = candidate.isa;
  }
  if (!selection.isa) {
    selection.error = "the environment variable NORMACT_CPU_ISA is \"" + std::string(wanted) +
                      "\"; expected one of those that this processor can run: " + names;
  }
  return selection;
}

const Selection& selection() {
  static const Selection chosen = select();
  return chosen;
}

}  // namespace

Status find_row_kernels(DType dtype, const RowKernels** kernels) {
  const Selection& chosen = selection();
  if (!chosen.isa) return Status(NORMACT_INVALID_ARGUMENT, chosen.error);
  *kernels = &chosen.isa->row[static_cast<int>(dtype)];
  return Status();
}

Status find_row_kernels(const RowProblem& problem, const RowKernels** kernels) {
  NORMACT_TRY(find_row_kernels(problem.dtype, kernels));
  if (is_mixed(problem)) *kernels = &selection().isa->mixed_row[problem.io_dtype == DType::f16 ? 0 : 1];
  return Status();
}

Status find_pointwise_kernels(DType dtype, const PointwiseKernels** kernels) {
  const Selection& chosen = selection();
  if (!chosen.isa) return Status(NORMACT_INVALID_ARGUMENT, chosen.error);
  *kernels = &chosen.isa->pointwise[static_cast<int>(dtype)];
  return Status();
}

Status find_channel_kernels(DType dtype, const ChannelKernels** kernels) {
  const Selection& chosen = selection();
  if (!chosen.isa) return Status(NORMACT_INVALID_ARGUMENT, chosen.error);
  *kernels = &chosen.isa->channel[static_cast<int>(dtype)];
  return Status();
}

Status find_array_activation(DType dtype, const Activation& activation, ArrayActivation* storage,
                             const ArrayActivation** found) {
  *found = nullptr;
  if (is_identity(activation)) return Status();
  const PointwiseKernels* kernels;
  NORMACT_TRY(find_pointwise_kernels(dtype, &kernels));
  *storage = array_activation(kernels->array_activations, activation);
  *found = storage;
  return Status();
}

const char* isa_name() {
  const Selection& chosen = selection();
  return chosen.isa ? chosen.isa->name : "none: NORMACT_CPU_ISA names no instruction set that can run here";
}

}  // namespace normact::cpu
