// SPDX-License-Identifier: Apache-2.0
#include "plain_tensor.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <utility>

#include "bindings.h"

namespace presum::python {
namespace {

namespace nb = nanobind;
using step::Steps;

constexpr std::size_t kLongRead = 64 << 10;  // bytes: some microseconds, and others may go on

constexpr nb::dlpack::dtype kBfloat16{static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat), 16,
                                      1};
constexpr nb::dlpack::dtype kFloat16{static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float), 16,
                                     1};

// The elements of a tensor, contiguous in host memory.
struct Elements {
  const void* data;
  std::size_t count;
  nb::dlpack::dtype dtype;
};

// Never freed: names and objects of torch that live as long as the interpreter.
PyObject* kept(nb::object object) { return object.release().ptr(); }

// The head of the table of functions that classes of arrays offer as __dlpack_c_exchange_api__:
// DLPack 1.3, torch 2.10. `view` borrows, allocates nothing and does not wait for a device.
struct Exchange {
  std::uint32_t major_version, minor_version;
  void* older;
  void* others[3];
  int (*view)(void* object, nb::dlpack::dltensor* out);
};

// Of torch's own tensors; null where it is too old to have one.
const Exchange* exchange_of(const nb::object& tensor_class) {
  const nb::object capsule = nb::getattr(tensor_class, "__dlpack_c_exchange_api__", nb::none());
  if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api") == 0) return nullptr;
  const auto* found =
      static_cast<const Exchange*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  return found->major_version == 1 && found->view != nullptr ? found : nullptr;
}

struct Torch {
  static const Torch& get() {
    static const Torch kTorch;
    return kTorch;
  }

  explicit Torch(const nb::module_& module = nb::module_::import_("torch"))
      : exchange(exchange_of(module.attr("Tensor"))),
        tensor(kept(module.attr("Tensor"))),
        parameter(kept(module.attr("nn").attr("Parameter"))),
        strided_layout(kept(module.attr("strided"))),
        dtypes{{{kept(module.attr("float32")), nb::dtype<float>()},
                {kept(module.attr("bfloat16")), kBfloat16},
                {kept(module.attr("float16")), kFloat16},
                {kept(module.attr("float64")), nb::dtype<double>()},
                {kept(module.attr("int64")), nb::dtype<std::int64_t>()}}} {}

  const Exchange* exchange;
  PyObject* tensor;
  PyObject* parameter;
  PyObject* strided_layout;
  std::array<std::pair<PyObject*, nb::dlpack::dtype>, 5> dtypes;
};

// One attribute or method of a tensor, by a name that is made once.
class Name {
 public:
  explicit Name(const char* name) : name_(PyUnicode_InternFromString(name)) {}
  nb::object of(nb::handle object) const { return found(PyObject_GetAttr(object.ptr(), name_)); }
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

std::optional<nb::dlpack::dtype> torch_dtype(nb::handle dtype) {
  for (const auto& [object, value] : Torch::get().dtypes) {
    if (dtype.ptr() == object) return value;
  }
  return std::nullopt;
}

// A view may be of a storage that was freed since.
bool has_memory(nb::handle tensor, const Elements& elements) {
  const Names& names = Names::get();
  if (elements.count == 0) return true;
  const std::size_t end = number(names.storage_offset.call(tensor)) + elements.count;
  const std::size_t bytes = number(names.nbytes.call(names.untyped_storage.call(tensor)));
  return elements.data != nullptr && bytes >= end * elements.dtype.bits / 8;
}

bool is_contiguous(const nb::dlpack::dltensor& view) {
  std::int64_t stride = 1;
  for (std::int32_t i = view.ndim - 1; i >= 0; --i) {
    if (view.shape[i] == 0) return true;
    if (view.shape[i] != 1 && view.strides != nullptr && view.strides[i] != stride) return false;
    stride *= view.shape[i];
  }
  return true;
}

std::size_t elements_of(const nb::dlpack::dltensor& view) {
  std::size_t count = 1;
  for (std::int32_t i = 0; i < view.ndim; ++i) count *= static_cast<std::size_t>(view.shape[i]);
  return count;
}

// One call of torch instead of eight: after a backward pass their code is in no cache.
std::optional<Elements> exchanged(const Exchange& exchange, nb::handle tensor) {
  nb::dlpack::dltensor view;
  if (exchange.view(tensor.ptr(), &view) != 0) throw nb::python_error();
  if (view.device.device_type != nb::device::cpu::value) return std::nullopt;
  if (!is_contiguous(view)) return std::nullopt;
  const auto* data = static_cast<const std::byte*>(view.data) + view.byte_offset;
  return Elements{data, elements_of(view), view.dtype};
}

std::optional<Elements> by_attributes(nb::handle tensor) {
  const Names& names = Names::get();
  if (names.layout.of(tensor).ptr() != Torch::get().strided_layout) return std::nullopt;
  if (!is_true(names.is_cpu.of(tensor)) || is_true(names.is_nested.of(tensor))) return std::nullopt;
  const std::optional<nb::dlpack::dtype> dtype = torch_dtype(names.dtype.of(tensor));
  if (!dtype || !is_true(names.is_contiguous.call(tensor))) return std::nullopt;
  const auto* data = reinterpret_cast<const void*>(number(names.data_ptr.call(tensor)));
  return Elements{data, number(names.numel.call(tensor)), *dtype};
}

std::optional<Elements> elements_or_error(nb::handle tensor) {
  const Torch& torch = Torch::get();
  auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(tensor.ptr()));
  if (type != torch.tensor && type != torch.parameter) return std::nullopt;
  const std::optional<Elements> found =
      torch.exchange != nullptr ? exchanged(*torch.exchange, tensor) : by_attributes(tensor);
  if (!found || is_true(Names::get().is_neg.call(tensor))) return std::nullopt;
  return has_memory(tensor, *found) ? found : std::nullopt;
}

std::optional<Elements> plain_elements(nb::handle tensor) {
  try {
    return elements_or_error(tensor);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_Exception)) throw;
    return std::nullopt;
  }
}

template <class T>
std::optional<std::span<const T>> plain_elements_of(nb::handle tensor) {
  const std::optional<Elements> found = plain_elements(tensor);
  if (!found || found->dtype != nb::dtype<T>()) return std::nullopt;
  return std::span(static_cast<const T*>(found->data), found->count);
}

template <class T>
std::optional<double> number_of(nb::handle tensor) {
  const auto elements = plain_elements_of<T>(tensor);
  return elements && elements->size() == 1 ? std::optional<double>(elements->front())
                                           : std::nullopt;
}

std::optional<double> plain_number(nb::handle tensor) {
  const std::optional<double> number = number_of<float>(tensor);
  return number ? number : number_of<double>(tensor);
}

std::optional<std::uint64_t> count_plain_targets(nb::handle labels, std::int64_t ignored) {
  const auto elements = plain_elements_of<std::int64_t>(labels);
  if (!elements) return std::nullopt;
  const auto left_out = std::ranges::count(*elements, ignored);
  return elements->size() - static_cast<std::size_t>(left_out);
}

// Whether it was read: where it was not, its reader in Python is to look at it.
bool read_plain(Steps& steps, ParameterId id, nb::handle tensor, bool reduced) {
  const std::optional<Block> block = plain_block(tensor);
  if (block) read_block(steps, id, *block, reduced);
  return block.has_value();
}

// The same for a parameter, or for what an optimizer keeps of one.
bool hash_plain(Steps& steps, StateHash::Kind kind, std::uint32_t index, nb::handle tensor) {
  const std::optional<Block> block = plain_block(tensor);
  if (!block) return false;
  const auto bytes = static_cast<std::uint32_t>(element_bytes(block->dtype));
  unwrap(without_gil([&] {
    return steps.contents().state(steps.layout(), kind, index, block->data, block->count, bytes, 0);
  }));
  return true;
}

}  // namespace

void know_torch() {
  Torch::get();
  Names::get();
}

nb::object grad_of(nb::handle parameter) { return Names::get().grad.of(parameter); }

std::optional<Block> plain_block(nb::handle tensor) {
  const std::optional<Elements> found = plain_elements(tensor);
  const std::optional<Dtype> dtype = found ? known_dtype(found->dtype) : std::nullopt;
  return dtype ? std::optional(Block{found->data, found->count, *dtype}) : std::nullopt;
}

void read_block(Steps& steps, ParameterId id, const Block& block, bool reduced) {
  const auto read = [&] {
    return steps.gradients().read(id, block.data, block.count, block.dtype, reduced);
  };
  const bool is_long = block.count * element_bytes(block.dtype) > kLongRead;
  unwrap(is_long ? without_gil(read) : read());
}

void bind_plain_tensor(nb::module_& m) {
  m.def("read_plain", &read_plain, nb::arg("observer"), nb::arg("parameter"), nb::arg("gradient"),
        nb::arg("reduced"),
        "Reads a gradient that is contiguous in host memory, of a class and dtype of torch's own. "
        "Whether it was one.");
  m.def("hash_plain", &hash_plain, nb::arg("observer"), nb::arg("kind"), nb::arg("index"),
        nb::arg("state"), "The hash of a tensor that belongs to parameter, or buffer, `index`.");
  m.def("plain_number", &plain_number, nb::arg("tensor"),
        "The element of a tensor in host memory, of torch's own class, float32 or float64. None "
        "for another one.");
  m.def("count_plain_targets", &count_plain_targets, nb::arg("labels"), nb::arg("ignored"),
        "How many labels take part in the loss: those that are not `ignored`. None unless they are "
        "int64, contiguous in host memory, and of torch's own class.");
}

}  // namespace presum::python
