// SPDX-License-Identifier: Apache-2.0
// The arrays that a call writes to: given in out=, or made by the library of another array. For PyTorch's tensors that
// is done here, as the interpreter takes as long for it as the allocation itself; normact/arrays.py does the others.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>

namespace normact::python {

namespace nb = nanobind;

/// The same, for the type checkers of those who call: of a class that an argument names.
inline nb::any as_any(nb::object object) { return nb::steal<nb::any>(object.release()); }

/// The outputs of a call, an entry for each of `names`: those that out= gives, and new arrays for the rest.
///   names: of each output its name and that of the array which it is like, as ("dweight", "weight").
///   likes: of each output that array; or of a statistic of the first array its shape, or, if it lies otherwise, its
///     sizes in the order of memory and where its axes are among them; or of a mask its bytes; None for an output that
///     the call does not produce.
///   wanted: None, or of each output but the first whether it is made if it is not given.
nb::tuple outputs(const char* function, nb::handle out, nb::tuple names, nb::tuple likes, nb::handle wanted);

/// What the caller gets of outputs(), as `type`: a class of tuples. Arrays made for an immutable library are handed
/// over to it.
nb::any finish(nb::handle type, nb::tuple done, nb::handle out, nb::tuple names, nb::tuple likes, const char* function);

/// Both for a call that has one output, like `like`, where out= is no tuple: by a shorter way.
nb::object output(const char* function, nb::handle out, nb::tuple names, nb::handle like);
nb::object finish(nb::object done, nb::handle out, nb::handle like, const char* function);

/// Of a tensor of PyTorch: one like it, and a statistic of it.
nb::object torch_empty_like(nb::handle like);
nb::object torch_statistic(nb::handle x, nb::handle shape);

/// Bytes on the GPU of an array, from the allocator of its library.
nb::object make_bytes(nb::handle like, size_t count);

void bind_outputs(nb::module_& module);

}  // namespace normact::python
