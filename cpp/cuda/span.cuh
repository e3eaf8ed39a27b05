// SPDX-License-Identifier: Apache-2.0
// Rows of any alignment on their way through shared memory. A tile is a few consecutive rows of one tensor. It lies in
// shared memory at the same offset modulo 16 as in global memory, so that everything but its ragged ends moves in
// aligned 16-byte pieces, whatever the row length. If the rows follow each other without gaps the tile is one span
// with two ragged ends; otherwise each row is a span.
#pragma once

#include "cuda/memory.cuh"

namespace normact::cuda {

/// Where the rows [row, row + rows) of one operand lie in shared memory.
template <class T>
struct TileSpan {
  const Operand* operand;
  const RowGeometry* geometry;
  char* shared;  // 16-byte aligned
  int64_t row;
  int rows;
  bool dense;    // rows without gaps between them

  __device__ TileSpan(const Operand& tensor, const RowGeometry& shape, char* memory, int64_t first, int count)
      : operand(&tensor), geometry(&shape), shared(memory), row(first), rows(count),
        dense(shape.row_ndim == 1 && tensor.row_stride[0] == shape.cols) {}

  __device__ int row_bytes() const { return static_cast<int>(geometry->cols) * static_cast<int>(sizeof(T)); }

  /// Shared bytes from one row to the next when rows are spans of their own; room for a row at any misalignment.
  __host__ __device__ static int pitch(int64_t cols) {
    return static_cast<int>((cols * static_cast<int64_t>(sizeof(T)) + 2 * kPackBytes - 1) / kPackBytes) * kPackBytes;
  }

  __device__ T* global_row(int i) const { return row_pointer<T>(*operand, *geometry, row + i); }

  static __device__ int misalignment(const void* pointer) {
    return static_cast<int>(reinterpret_cast<uintptr_t>(pointer) % kPackBytes);
  }

  /// Row i in shared memory.
  __device__ T* shared_row(int i) const {
    char* start = dense ? shared + misalignment(global_row(0)) + i * row_bytes()
                        : shared + i * pitch(geometry->cols) + misalignment(global_row(i));
    return reinterpret_cast<T*>(start);
  }

  /// Calls visit(global, shared, bytes) for every 16-byte piece that belongs to this thread; bytes < 16 at ragged ends.
  template <class Visit>
  __device__ void for_each_piece(int thread, int threads, Visit visit) const {
    const int spans = dense ? 1 : rows;
    const int bytes = dense ? rows * row_bytes() : row_bytes();
    const int pieces_per_span = (bytes + 2 * kPackBytes - 2) / kPackBytes;
    for (int piece = thread; piece < spans * pieces_per_span; piece += threads) {
      const int span = piece / pieces_per_span;
      char* begin = reinterpret_cast<char*>(global_row(span));
      char* memory = reinterpret_cast<char*>(shared_row(span));
      const int offset = (piece - span * pieces_per_span) * kPackBytes - misalignment(begin);
      const int low = offset < 0 ? 0 : offset;
      const int high = offset + kPackBytes < bytes ? offset + kPackBytes : bytes;
      if (low < high) visit(begin + low, memory + low, high - low);
    }
  }

  /// Starts bringing the tile in. It is there after commit, wait and a barrier.
  __device__ void copy_in(int thread, int threads) const {
    for_each_piece(thread, threads, [](char* global, char* memory, int bytes) {
      if (bytes == kPackBytes) {
        copy_async(memory, global);
      } else {
        for (int b = 0; b < bytes; b += static_cast<int>(sizeof(T))) {
          *reinterpret_cast<T*>(memory + b) = *reinterpret_cast<const T*>(global + b);
        }
      }
    });
  }

  /// Writes the tile out; a barrier must have come between filling it and this call.
  __device__ void copy_out(int thread, int threads) const {
    for_each_piece(thread, threads, [](char* global, char* memory, int bytes) {
      if (bytes == kPackBytes) {
        __stcs(reinterpret_cast<uint4*>(global), *reinterpret_cast<const uint4*>(memory));
      } else {
        for (int b = 0; b < bytes; b += static_cast<int>(sizeof(T))) {
          *reinterpret_cast<T*>(global + b) = *reinterpret_cast<const T*>(memory + b);
        }
      }
    });
  }
};

}  // namespace normact::cuda
