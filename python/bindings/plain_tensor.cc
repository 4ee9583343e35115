// SPDX-License-Identifier: Apache-2.0
#include "plain_tensor.h"

#include <nanobind/stl/optional.h>

#include <array>
#include <utility>
#include <vector>

#include "bindings.h"
#include "observe/dot.h"

namespace presum::python {
namespace {

namespace nb = nanobind;
using step::Steps;

constexpr std::size_t kLongRead = 64 << 10;  // bytes: some microseconds, and others may go on

// Never freed: names and objects of torch that live as long as the interpreter.
PyObject* kept(nb::object object) { return object.release().ptr(); }

struct Torch {
  static const Torch& get() {
    static const Torch kTorch;
    return kTorch;
  }

  nb::module_ module = nb::module_::import_("torch");
  PyObject* tensor = kept(module.attr("Tensor"));
  PyObject* parameter = kept(module.attr("nn").attr("Parameter"));
  PyObject* strided_layout = kept(module.attr("strided"));
  std::array<std::pair<PyObject*, Dtype>, 4> dtypes = {{
      {kept(module.attr("float32")), Dtype::kF32},
      {kept(module.attr("bfloat16")), Dtype::kBF16},
      {kept(module.attr("float16")), Dtype::kF16},
      {kept(module.attr("float64")), Dtype::kF64},
  }};
};

// One attribute or method of a tensor, by a name that is made once.
class Name {
 public:
  explicit Name(const char* name) : name_(PyUnicode_InternFromString(name)) {}
  nb::object of(nb::handle object) const {
    return found(PyObject_GetAttr(object.ptr(), name_));
  }
  nb::object call(nb::handle object) const {
    PyObject* const self = object.ptr();
    return found(PyObject_VectorcallMethod(name_, &self, 1, nullptr));
  }

 private:
  static nb::object found(PyObject* object) {
    if (object == nullptr) throw nb::python_error();
    return nb::steal(object);
  }
  PyObject* name_;
};

struct Names {
  static const Names& get() {
    static const Names kNames;
    return kNames;
  }
  Name grad{"grad"}, layout{"layout"}, dtype{"dtype"}, is_cpu{"is_cpu"}, is_nested{"is_nested"};
  Name is_neg{"is_neg"}, is_contiguous{"is_contiguous"}, numel{"numel"}, data_ptr{"data_ptr"};
  Name storage_offset{"storage_offset"}, untyped_storage{"untyped_storage"}, nbytes{"nbytes"};
};

bool is_true(const nb::object& answer) { return answer.ptr() == Py_True; }

std::size_t number(const nb::object& answer) {
  const std::size_t value = PyLong_AsSize_t(answer.ptr());
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  return value;
}

std::optional<Dtype> dtype_of(nb::handle dtype) {
  for (const auto& [object, value] : Torch::get().dtypes) {
    if (dtype.ptr() == object) return value;
  }
  return std::nullopt;
}

// A view may be of a storage that was freed since.
bool has_memory(nb::handle tensor, const Block& block) {
  const Names& names = Names::get();
  if (block.count == 0) return true;
  const std::size_t end = number(names.storage_offset.call(tensor)) + block.count;
  const std::size_t bytes = number(names.nbytes.call(names.untyped_storage.call(tensor)));
  return block.data != nullptr && bytes >= end * element_bytes(block.dtype);
}

std::optional<Block> block_or_error(nb::handle tensor) {
  const Torch& torch = Torch::get();
  const Names& names = Names::get();
  auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(tensor.ptr()));
  if (type != torch.tensor && type != torch.parameter) return std::nullopt;
  if (names.layout.of(tensor).ptr() != torch.strided_layout) return std::nullopt;
  if (!is_true(names.is_cpu.of(tensor)) || is_true(names.is_nested.of(tensor))) return std::nullopt;
  const std::optional<Dtype> dtype = dtype_of(names.dtype.of(tensor));
  if (!dtype || is_true(names.is_neg.call(tensor))) return std::nullopt;
  if (!is_true(names.is_contiguous.call(tensor))) return std::nullopt;
  const auto* data = reinterpret_cast<const void*>(number(names.data_ptr.call(tensor)));
  const Block block{data, number(names.numel.call(tensor)), *dtype};
  return has_memory(tensor, block) ? std::optional(block) : std::nullopt;
}

// The sum of products of `own`, one after the other, with the parts of `reduced`.
double product(const std::vector<Block>& own, const Block& reduced) {
  const auto* part = static_cast<const std::byte*>(reduced.data);
  double sum = 0;
  for (const Block& block : own) {
    sum += observe::dot(block.data, part, block.count, block.dtype);
    part += block.count * element_bytes(block.dtype);
  }
  return sum;
}

std::optional<double> product_of(const nb::list& own, nb::handle reduced) {
  const std::optional<Block> whole = plain_block(reduced);
  if (!whole) return std::nullopt;
  std::vector<Block> blocks;
  blocks.reserve(own.size());
  std::size_t count = 0;
  for (const nb::handle tensor : own) {
    const std::optional<Block> block = plain_block(tensor);
    if (!block || block->dtype != whole->dtype) return std::nullopt;
    count += block->count;
    blocks.push_back(*block);
  }
  if (count != whole->count) return std::nullopt;
  return without_gil([&] { return product(blocks, *whole); });
}

}  // namespace

nb::object grad_of(nb::handle parameter) { return Names::get().grad.of(parameter); }

std::optional<Block> plain_block(nb::handle tensor) {
  try {
    return block_or_error(tensor);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_Exception)) throw;
    return std::nullopt;
  }
}

bool read_plain(Steps& steps, ParameterId id, nb::handle tensor, bool reduced) {
  const std::optional<Block> block = plain_block(tensor);
  if (!block) return false;
  const auto read = [&] {
    step::Gradients& gradients = steps.gradients();
    return reduced ? gradients.read_reduced(id, block->data, block->count, block->dtype)
                   : gradients.read(id, block->data, block->count, block->dtype);
  };
  const bool is_long = block->count * element_bytes(block->dtype) > kLongRead;
  unwrap(is_long ? without_gil(read) : read());
  return true;
}

void bind_plain_tensor(nb::module_& m) {
  m.def("read_plain", &read_plain, nb::arg("observer"), nb::arg("parameter"), nb::arg("gradient"),
        nb::arg("reduced"),
        "Reads a gradient that is contiguous in host memory, of a class and dtype of torch's own. "
        "Whether it was one.");
  m.def("product_of", &product_of, nb::arg("own"), nb::arg("reduced"),
        nb::sig("def product_of(own: list[typing.Any], reduced: object) -> float | None"),
        "The dot product of gradients, one after the other, with a tensor of as many elements, in "
        "double. None where one of them is not as read_plain wants them, or of another dtype.");
}

}  // namespace presum::python
