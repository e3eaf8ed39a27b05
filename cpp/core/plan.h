// SPDX-License-Identifier: Apache-2.0
// How a row problem will be run on a GPU: which kernel, how rows and columns are divided, how much memory. Pure
// functions of the problem and the device, so that they are tested without one. What decides how a row is summed
// (variant, threads_per_row, vectors, cluster) depends only on the columns, dtype, activation, alignment class and
// which of rows and columns are nearer to each other, never on the number of rows (from two to 2^31) or on a residual
// that lies as x does: a row's bits are the same in any batch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/problem.h"
#include "core/status.h"

namespace normact {

// What the planners and the kernels must agree on.
constexpr int kMaxStages = 4;              // tiles or rows in flight (but for runs: run_layout.h)
constexpr int kClusterStages = 6;          // rows of a cluster in flight, or halves of rows
constexpr int kClusterWarps = 16;          // of a cluster's block that work on rows, at most
constexpr int kClusterServants = 2;        // more warps of it: one exchanges sums, one brings in rows
constexpr int kExchangeDepth = 4;          // rows whose sums a cluster's blocks exchange at the same time
constexpr int kTileForwardThreads = 512;   // of a block, two of which have registers for all their threads
constexpr int kTileBackwardThreads = 320;  // the same, but for activations
constexpr int kElementThreads = 256;       // of a block, where single elements are streamed
constexpr int kApplyColumns = 4;           // that a warp of it has at the same time, where it goes over rows
constexpr int kTilesASum = 256;  // tiles of a block, or rows of a cluster, that a thread adds one to the other

constexpr int kStaticSharedReserve = 4096;  // of a block's shared memory, for the kernels' static one

/// What a plan needs to know of a device.
struct DeviceInfo {
  int compute_capability;  // 90 for sm_90
  int multiprocessors;
  int shared_memory_block;  // dynamic bytes that one block may opt in to, beside its static ones
  int active_clusters[5];   // clusters of 1 << i blocks that run at once when a block fills a multiprocessor
  int l2_bytes;
};

/// How the rows of a problem can be accessed.
enum class RowAccess : uint8_t {
  packs,         // 16 bytes at a time: every row is whole packs at multiples of 16 bytes, and so are the parameters
  runs,          // contiguous columns at any alignment: by way of shared memory (row_runs.cuh)
  packed_lines,  // rows side by side, 16 bytes of neighbours at a time: lines of whole packs at multiples of 16 bytes
  half_packed_lines,  // the same of 8 bytes; 16-bit elements
  lines,              // rows side by side at any alignment
  packed_pieces,      // columns in pieces, in any dimensions, of whole packs at multiples of 16 bytes
  strided,            // one element at a time, at any strides; parameters of any mix of dtypes
};

/// Rows whose columns are in pieces or apart, which variants warp and block gather (cuda/row_gather.cuh).
inline bool is_apart(RowAccess access) { return access == RowAccess::packed_pieces || access == RowAccess::strided; }

struct RowPlan {
  normact_row_variant variant;
  RowAccess access;
  bool near;            // as in the request
  bool elements;        // stream: single elements (cuda/row_stream_elements.cuh)
  int apply_rows;       // elements, backward: rows of a warp at a time in the second pass
  int threads_per_row;  // in one block; elements: strands that it has of a row
  int vectors;          // packs, or runs, per thread and row, rounded up to an instantiated size
  int rows_per_block;   // rows that a block works on at the same time; of a tile or an image; elements: a warp
  int lanes_a_sum;      // of a tile, backward: neighbouring lanes that share the sums of parameter gradients
  int cluster;          // blocks that share a row
  int64_t slices;       // stream: of a row, each of which a block walks over; image: of one that is read twice
  int packs_per_block;  // of a row, or an image, within a cluster
  int stages;           // rows in flight a thread group (where rows come in ahead), or halves (kRowsByHalves)
  bool dense;           // runs: as in the request, but not of a cluster's slices
  int64_t parts;        // row ranges with a row of partial parameter sums each (backward)
  int threads;          // per block
  int64_t blocks;
  int shared_bytes;
  size_t workspace_bytes;
  size_t places;  // bytes at its end, where threads of many rows take their sums of parameter gradients (backward)
};

/// Columns of a block where single elements are streamed and the backward goes over rows.
inline int64_t apply_slab(const RowPlan& plan) { return int64_t{kElementThreads} * kApplyColumns / plan.apply_rows; }

/// Bytes of the moments that slices leave, forward.
inline size_t slice_moments_bytes(int64_t rows, int64_t slices) {
  return static_cast<size_t>(rows * slices) * 3 * sizeof(double);
}

/// Pairs of numbers that a backward of variant stream has in its workspace: of each row, and of slices where a row has
/// several.
inline int64_t stream_pairs(const RowPlan& plan, int64_t rows) {
  return rows * (plan.slices > 1 ? 1 + plan.slices : 1);
}

/// What the planner looks at besides the geometry.
struct RowRequest {
  RowGeometry geometry;
  DType dtype;
  RowAccess access;
  bool contiguous;           // as in the problem
  bool dense;                // rows of all operands of x's shape follow each other without gaps
  bool near;                 // less than 2^31 elements between a row's columns, and from row to row, in all operands
  bool beside;               // rows are nearer to each other than columns, in all operands of x's shape
  bool images;               // lines follow each other without gaps, in samples of whole packs
  bool residual;             // residual (forward) or dresidual (backward)
  bool activated;            // an activation
  bool mixed;                // tensors of 16 bits beside dtype float32, for which there are few kernels
  bool parameter_gradients;  // dweight or dbias
  normact_row_variant variant;
  int sm_margin;
};

/// Whether samples may be images (RowRequest::images), wherever they lie.
bool may_be_images(const RowProblem& problem);

/// The same of columns that may be pieces of whole packs.
bool may_be_pieces(const RowProblem& problem);

Status plan_row_forward(const RowRequest& request, const DeviceInfo& device, RowPlan* plan);
Status plan_row_backward(const RowRequest& request, const DeviceInfo& device, RowPlan* plan);

/// The planner's view of a problem. Without pointers (workspace queries), alignment is what the caller says.
RowRequest request_of(const RowForward& problem, normact_row_variant variant, int sm_margin);
RowRequest request_of(const RowBackward& problem, normact_row_variant variant, int sm_margin);

}  // namespace normact
