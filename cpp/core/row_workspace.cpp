// SPDX-License-Identifier: Apache-2.0
#include "core/row_workspace.h"

#include <algorithm>

#include "core/plan_common.h"
#include "core/row_copies.h"

namespace normact {
namespace {

/// How images lie: lines of whole packs are packed whatever the samples' alignment, which is that of packs.
RowAccess access_of_images(const RowProblem& problem) {
  const RowGeometry& g = problem.geometry;
  const bool packed = g.row_shape[g.row_ndim - 1] * size_of(problem.dtype) % kPackBytes == 0;
  return packed ? RowAccess::packed_lines : RowAccess::lines;
}

}  // namespace

Status most_workspace(const RowForward& given, const DeviceInfo& device, normact_row_variant variant, int sm_margin,
                      size_t* bytes) {
  *bytes = most_stream_workspace(given.geometry);
  if (given.contiguous || given.geometry.rows == 0) return {};
  RowForward problem = given;
  if (may_gather(given, variant)) gather_rows(&problem, device);
  if (!may_be_images(problem)) return {};
  RowRequest request = request_of(problem, variant, sm_margin);
  request.access = access_of_images(problem);
  request.images = true;
  RowPlan plan;
  // A forced variant may be legal for some layouts only; the call itself decides.
  if (plan_row_forward(request, device, &plan).ok()) *bytes = std::max(*bytes, plan.workspace_bytes);
  return {};
}

Status most_workspace(const RowBackward& given, const DeviceInfo& device, normact_row_variant variant, int sm_margin,
                      size_t* bytes) {
  *bytes = 0;
  if (given.geometry.rows == 0) return {};
  RowBackward problem = given;
  GatheredInputs inputs;
  if (may_gather(given, variant)) inputs = gather_rows(&problem, device, query_address());
  RowRequest request = request_of(problem, variant, sm_margin);
  Status status;
  bool legal = false;  // a forced variant may be legal for some layouts only; the call itself decides
  const bool mixed = is_mixed(problem);
  const bool whole_packs = problem.geometry.cols * size_of(problem.io_dtype) % kPackBytes == 0;
  const auto plan_access = [&](RowAccess access, bool images) {
    RowPlan plan;
    request.access = access;
    request.images = images;
    status = plan_row_backward(request, device, &plan);
    if (!status.ok()) return;
    legal = true;
    *bytes = std::max(*bytes, plan.workspace_bytes);
  };
  // All lines are planned alike, but for images.
  for (const RowAccess access :
       {RowAccess::packs, RowAccess::runs, RowAccess::lines, RowAccess::packed_pieces, RowAccess::strided}) {
    if (access == RowAccess::packs && !whole_packs) continue;
    if (access == RowAccess::packed_pieces && !may_be_pieces(problem)) continue;
    const bool in_order = access == RowAccess::packs || access == RowAccess::runs;
    const bool in_lines = access == RowAccess::lines;
    if (mixed && (access == RowAccess::runs || in_lines)) continue;
    if (in_order ? !problem.contiguous : !mixed && problem.adjacent != in_lines) continue;
    plan_access(access, false);
    if (in_lines && may_be_images(problem)) plan_access(access_of_images(problem), true);
  }
  *bytes += inputs.workspace_bytes;
  return legal ? Status() : status;
}

}  // namespace normact
