// The Python module celer._celer: what python/celer builds its classes on. Not an interface by itself.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>

#include "celer/version.h"
#include "common.h"

int CelerMain(int argc, char** argv);  // src/cli/main.cc

namespace celer::python {
namespace {

std::atomic<bool> used{false};
std::atomic<bool> orphaned{false};

void AfterForkInChild() {
  if (used.load()) orphaned.store(true);
}

constexpr const char* kForked =
    "celer was in use before this process was forked, and its threads do not survive that. Load models and "
    "networks in the "
    "child alone, or start processes with multiprocessing.get_context('spawn')";

PyObject* TypeOf(Error::Code code) {
  switch (code) {
    case Error::Code::kInvalid:
    case Error::Code::kCorrupt:
      return PyExc_ValueError;
    case Error::Code::kNotFound:
      return PyExc_FileNotFoundError;
    case Error::Code::kUnsupported:
      return PyExc_NotImplementedError;
    case Error::Code::kOutOfMemory:
      return PyExc_MemoryError;
    case Error::Code::kIo:
      return PyExc_OSError;
    case Error::Code::kNotFinite:
      return PyExc_ArithmeticError;
    case Error::Code::kDevice:
    case Error::Code::kCancelled:
      break;
  }
  return PyExc_RuntimeError;
}

// The program `celer` as this process: it takes over signals and ends the process.
void RunCommand(std::vector<std::string> args) {
  CheckFork();
  std::vector<char*> pointers;
  for (std::string& arg : args) pointers.push_back(arg.data());
  pointers.push_back(nullptr);
  const nb::gil_scoped_release release;
  const int code = CelerMain(static_cast<int>(args.size()), pointers.data());
  std::fflush(nullptr);
  _exit(code);
}

}  // namespace

void CheckFork() {
  if (IsOrphaned()) throw std::runtime_error(kForked);
}

void NoteUse() {
  CheckFork();
  used.store(true);
}

bool IsOrphaned() {
  return orphaned.load();
}

}  // namespace celer::python

NB_MODULE(_celer, module) {
  namespace nb = nanobind;
  using celer::python::Raised;
  module.doc() = "The library behind the package celer.";
  pthread_atfork(nullptr, nullptr, celer::python::AfterForkInChild);
  nb::set_leak_warnings(false);
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Raised& raised) {
      PyErr_SetString(celer::python::TypeOf(raised.error().code()), raised.what());
    }
  });
  module.def("version", [] { return std::string(celer::Version()); });
  module.def("run_command", &celer::python::RunCommand, nb::arg("args"));
  celer::python::BindModel(module);
  celer::python::BindGraph(module);
  celer::python::BindLimits(module);
}
