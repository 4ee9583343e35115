// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <utility>

#include "bindings.h"
#include "plain_tensor.h"
#include "step/steps.h"

namespace presum::python {
namespace {

namespace nb = nanobind;
using step::Steps;

using Clock = std::chrono::steady_clock;

// What hooks of parameters look at once a gradient, so without Python. A recorder's base class.
struct PassFlags {
  // Around whatever a recorder does for torch; what is done inside of it is not counted twice.
  void enter() {
    if (depth++ == 0) entered = Clock::now();
  }
  void leave() {
    if (--depth == 0) spent += Clock::now() - entered;
  }

  bool off = false;
  bool in_backward = false;
  bool reads_sums = false;      // what `.grad` holds is to be read
  bool reads_arrivals = false;  // what is added to it
  std::uint64_t arrivals = 0;   // gradients that came so far
  int depth = 0;
  Clock::time_point entered;
  Clock::duration spent{};
};

class Inside {
 public:
  explicit Inside(PassFlags& flags) : flags_(flags) { flags_.enter(); }
  ~Inside() { flags_.leave(); }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  PassFlags& flags_;
};

// What torch calls once a parameter has its gradient.
class ParameterHook {
 public:
  ParameterHook() = default;
  ParameterHook(nb::object listener, ParameterId id, Steps* steps)
      : listener_(std::move(listener)),
        flags_(nb::cast<PassFlags*>(listener_)),
        steps_(steps),
        id_(id) {
    know_torch();
  }

  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(listener_.ptr());
    return 0;
  }
  void clear() {
    flags_ = nullptr;
    steps_ = nullptr;
    listener_.reset();
  }

  // Raises what is no Exception of Python's, such as KeyboardInterrupt, and nothing else.
  void call(nb::handle parameter) {
    if (flags_ == nullptr || flags_->off) return;
    const Inside inside(*flags_);
    try {
      arrived(parameter);
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_Exception)) throw;
      listener_.attr("fail")(error.value());
    } catch (const std::exception& error) {  // no memory, for one
      listener_.attr("fail")(nb::handle(PyExc_RuntimeError)(error.what()));
    }
  }

 private:
  void arrived(nb::handle parameter) {
    ++flags_->arrivals;
    if (!flags_->in_backward) {
      if (nb::cast<bool>(listener_.attr("is_captured")())) return;
      listener_.attr("before_backward")();
    }
    if (flags_->reads_sums) {
      read(grad_of(parameter));
    } else if (flags_->reads_arrivals) {
      listener_.attr("accumulated")(id_);
    }
  }

  void read(const nb::object& grad) const {
    if (grad.is_none()) return;
    const auto block = steps_ == nullptr ? std::nullopt : plain_block(grad);
    if (block) return read_block(*steps_, id_, *block, false);
    listener_.attr("read")(id_, grad, nb::arg("reduced") = false);
  }

  nb::object listener_;  // a recorder, which holds the observer
  PassFlags* flags_ = nullptr;
  Steps* steps_ = nullptr;
  ParameterId id_ = 0;
};

PyObject* call_hook(PyObject* self, PyObject* args, PyObject* /*kwargs*/) {
  const nb::object hook = nb::borrow(self);  // what it calls may remove it
  try {
    if (PyTuple_Size(args) > 0) {
      nb::inst_ptr<ParameterHook>(hook)->call(PyTuple_GetItem(args, 0));
    }
  } catch (nb::python_error& error) {
    error.restore();
    return nullptr;
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
  Py_RETURN_NONE;
}

int traverse_hook(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return nb::inst_ready(self) ? nb::inst_ptr<ParameterHook>(self)->traverse(visit, arg) : 0;
}

int clear_hook(PyObject* self) {
  nb::inst_ptr<ParameterHook>(self)->clear();
  return 0;
}

PyType_Slot kHookSlots[] = {{Py_tp_call, reinterpret_cast<void*>(&call_hook)},
                            {Py_tp_traverse, reinterpret_cast<void*>(&traverse_hook)},
                            {Py_tp_clear, reinterpret_cast<void*>(&clear_hook)},
                            {0, nullptr}};

// One of Python's own that does nothing, so that models load where presum is not installed.
nb::object pickled_as_nothing(nb::handle /*hook*/) {
  return nb::module_::import_("presum.torch_events.hooks").attr("pickled_as_nothing")();
}

}  // namespace

void bind_parameter_hook(nb::module_& m) {
  nb::class_<PassFlags>(m, "PassFlags",
                        "Where a recorder is in a backward pass: what hooks of parameters look at.")
      .def(nb::init<>())
      .def_rw("off", &PassFlags::off)
      .def_rw("in_backward", &PassFlags::in_backward)
      .def_rw("reads_sums", &PassFlags::reads_sums, "What ``.grad`` holds is to be read.")
      .def_rw("reads_arrivals", &PassFlags::reads_arrivals, "What is added to it.")
      .def_rw("arrivals", &PassFlags::arrivals, "Gradients that came so far.")
      .def("leave", &PassFlags::leave, "Where a recorder calls what is the program's own...")
      .def("enter", &PassFlags::enter, "...and back.")
      .def(
          "__enter__", [](PassFlags& o) { o.enter(); },
          "Around whatever a recorder does for torch: it takes the time.")
      .def(
          "__exit__", [](PassFlags& o, const nb::args& /*error*/) { o.leave(); },
          nb::sig("def __exit__(self, *error: object) -> None"))
      .def_prop_ro(
          "spent",
          [](const PassFlags& o) { return std::chrono::duration<double>(o.spent).count(); },
          "Seconds within ``with``, and in hooks of parameters, of all threads together: those in "
          "which one at least is there.");
  nb::class_<ParameterHook> hook(
      m, "ParameterHook", nb::type_slots(kHookSlots), nb::is_weak_referenceable(),
      "What torch calls once a parameter has its gradient: without a frame of Python. It "
      "never raises, and copies and pickles as one of Python's own that does nothing. `observer`: "
      "reads what lies in host memory; None where the listener does.");
  hook.def(nb::init<>())
      .def(nb::init<nb::object, ParameterId, Steps*>(), nb::arg("listener"), nb::arg("parameter"),
           nb::arg("observer").none(),
           nb::sig("def __init__(self, listener: typing.Any, parameter: int, observer: Observer | "
                   "None) -> None"))
      .def("__reduce__", &pickled_as_nothing,
           nb::sig("def __reduce__(self) -> tuple[object, ...]"));
  hook.attr("__torch_unserializable__") = true;  // saving its tensor is no reason for a warning
}

}  // namespace presum::python
