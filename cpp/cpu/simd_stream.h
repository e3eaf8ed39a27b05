// SPDX-License-Identifier: Apache-2.0
// Stores past the caches, for outputs that are too large to be found there later: a usual store first reads the line
// that it overwrites, so that a copy moves three tensors instead of two.
//
// What begins where a vector does is stored so from the registers (Storing::past). Other rows of a norm come to a
// buffer in the first cache and go from there, a kilobyte at a time: of a larger buffer the reading and the writing
// would take turns instead of going on together (measured: 4 KiB take 1.13 times as long).
#pragma once

#include "cpu/row_kernels.h"
#include "cpu/simd_element.h"

#include <type_traits>

namespace normact::cpu::NORMACT_ISA {

/// Elements that come to the buffer at a time.
template <class T>
constexpr int64_t kStreamed = 1024 / int64_t{sizeof(Accumulator<T>)};

// What a call reads from memory is asked for early, where a loop is too long for the processor to look ahead on its
// own, or moves so little that waiting is all it does. 6 KiB ahead are as good for one long array, but not for the rows
// of packed gates, which are shorter (AMD EPYC, fp32 4096 x 4096: sigmoid's backward 5260 -> 3400 us, swiglu 7160 ->
// 3320).
constexpr int64_t kAheadBytes = 32768;

/// Asks for kCount elements.
template <int64_t kCount, class T>
NORMACT_SIMD void ask_ahead(const T* now) {
  for (int64_t line = 0; line < kCount * int64_t{sizeof(T)}; line += kLineBytes) {
    __builtin_prefetch(reinterpret_cast<const char*>(now) + kAheadBytes + line);
  }
}

/// How many elements lie between an address and the next that is a multiple of so many bytes.
template <class T>
NORMACT_SIMD int64_t elements_to(const T* from, int bytes) {
  const auto past = int64_t(reinterpret_cast<uintptr_t>(from) % unsigned(bytes));
  return past == 0 ? 0 : (bytes - past) / int64_t{sizeof(T)};
}
template <class T>
NORMACT_SIMD int64_t elements_to_vector(const T* from) {
  return elements_to(from, kVectorBytes);
}

/// How an array is stored. `past`: past the caches; it begins at a multiple of the vector's size.
enum class Storing { usual, past };

template <Storing kStoring, class T, class Lanes>
NORMACT_SIMD void store(T* to, Vec<T> v, Lanes lanes) {
  if constexpr (kStoring == Storing::past && std::is_same_v<Lanes, All>) {
    store(to, v, Streamed{});
  } else {
    store(to, v, lanes);
  }
}

/// target[i] = source[i] at any address. Other threads see it after stream_fence().
template <class T>
__attribute__((noinline)) void stream(const T* source, T* target, int64_t count) {
  constexpr int64_t kStep = kVectorBytes / int64_t{sizeof(T)};
  int64_t j = elements_to_vector(target);
  if (j > count) j = count;
  __builtin_memcpy(target, source, size_t(j) * sizeof(T));
  for (; j + kStep <= count; j += kStep) store_raw(target + j, load_raw<IntVec>(source + j, All{}), Streamed{});
  __builtin_memcpy(target + j, source + j, size_t(count - j) * sizeof(T));
}

/// Ends a kernel that has streamed.
NORMACT_SIMD void stream_fence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

/// write(buffer, begin, count) for pieces of an array of `count` elements, which go from the buffer to the target.
/// All but the first begin where a line does, so that no line is written in two ways.
template <class T, class Write>
NORMACT_SIMD void stream_pieces(T* target, int64_t count, Write write) {
  alignas(kLineBytes) T buffer[kStreamed<T>];
  const int64_t to_line = elements_to(target, kLineBytes);
  int64_t piece = to_line > 0 ? to_line : kStreamed<T>;
  for (int64_t begin = 0; begin < count; begin += piece, piece = kStreamed<T>) {
    if (piece > count - begin) piece = count - begin;
    write(buffer, begin, piece);
    stream<T>(buffer, target + begin, piece);
  }
}

}  // namespace normact::cpu::NORMACT_ISA
