// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "bindings.h"

namespace presum::python {
namespace {

namespace nb = nanobind;

// Stands in a function's place and calls it. It is no Python function, so it leaves no frame: what
// the function warns of points at the program's line, and tracebacks are the program's own.
struct Tap {
  nb::object original;
  nb::object before;  // each may be None
  nb::object after;
  nb::object always;
  bool active = true;

  nb::object call(nb::args args, nb::kwargs kwargs) const {
    if (!active) return original(*args, **kwargs);
    if (!before.is_none()) {
      const nb::object changed = before(*args, **kwargs);
      if (!changed.is_none()) {
        args = nb::cast<nb::args>(changed[0]);
        kwargs = nb::cast<nb::kwargs>(changed[1]);
      }
    }
    if (always.is_none()) return call_original(args, kwargs);
    nb::object result;
    try {
      result = call_original(args, kwargs);
    } catch (...) {
      always();
      throw;
    }
    always();
    return result;
  }

  nb::object call_original(const nb::args& args, const nb::kwargs& kwargs) const {
    nb::object result = original(*args, **kwargs);
    if (!after.is_none()) after(result, *args, **kwargs);
    return result;
  }
};

// As a function of Python does: of an instance it becomes a method.
nb::object bind(nb::handle tap, nb::handle instance, nb::handle /*type*/) {
  if (instance.is_none()) return nb::borrow(tap);
  // PyMethod_New is not of the stable ABI.
  static const nb::handle kMethod =
      nb::object(nb::module_::import_("types").attr("MethodType")).release();
  return kMethod(tap, instance);
}

}  // namespace

void bind_tap(nb::module_& m) {
  nb::class_<Tap>(m, "Tap", nb::dynamic_attr(), nb::is_weak_referenceable(),
                  "Stands in a function's place, without a frame of its own. before(*args, "
                  "**kwargs) may return other arguments as (args, kwargs); after(result, *args, "
                  "**kwargs) is called where it returned, always() also where it raised.")
      .def(
          "__init__",
          [](Tap* tap, nb::object original, nb::object before, nb::object after,
             nb::object always) {
            new (tap)
                Tap{std::move(original), std::move(before), std::move(after), std::move(always)};
          },
          nb::arg("original"), nb::arg("before").none() = nb::none(),
          nb::arg("after").none() = nb::none(), nb::arg("always").none() = nb::none(),
          nb::sig("def __init__(self, original: collections.abc.Callable[..., typing.Any], "
                  "before: collections.abc.Callable[..., typing.Any] | None = None, "
                  "after: collections.abc.Callable[..., typing.Any] | None = None, "
                  "always: collections.abc.Callable[[], typing.Any] | None = None) -> None"))
      .def("__call__", &Tap::call,
           nb::sig("def __call__(self, *args: typing.Any, **kwargs: typing.Any) -> typing.Any"))
      .def("__get__", &bind, nb::arg("instance").none(), nb::arg("type").none() = nb::none(),
           nb::sig("def __get__(self, instance: object, type: type | None = None) -> typing.Any"))
      // By its name, as functions are copied and pickled.
      .def(
          "__reduce__", [](nb::handle tap) { return tap.attr("__qualname__"); },
          nb::sig("def __reduce__(self) -> str"))
      .def_rw("active", &Tap::active);
}

}  // namespace presum::python
