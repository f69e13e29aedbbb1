// The Python module celer._celer: what python/celer builds its classes on. Not an interface by itself.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "celer/log.h"
#include "celer/version.h"
#include "common.h"

int CelerMain(int argc, char** argv);  // src/cli/main.cc

namespace celer::python {
namespace {

// Messages of the library, until Python takes them. It does so where it holds its lock anyway: the engine's thread does not
// wait for Python.
class Messages {
 public:
  void Push(LogLevel level, std::string_view text) {
    constexpr size_t kMost = 1000;
    const std::lock_guard lock(mutex_);
    if (waiting_.size() < kMost) waiting_.emplace_back(static_cast<int>(level), text);
  }
  std::vector<std::pair<int, std::string>> Take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(waiting_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<int, std::string>> waiting_;
};
Messages& TheMessages() {
  static auto* const messages = new Messages;  // threads may write while the process ends
  return *messages;
}

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

// When the interpreter's exit functions ran.
struct Ending {
  std::atomic<bool> begun{false}, threads_seen{false};
  std::chrono::steady_clock::time_point when;
  std::atomic<std::thread::id> main{std::this_thread::get_id()};  // that imports the module, first
};
Ending& TheEnding() {
  static auto* const ending = new Ending;
  return *ending;
}

// Called by Python's atexit, after all threads but daemons have ended.
void End() {
  Ending& ending = TheEnding();
  ending.main = std::this_thread::get_id();
  ending.when = std::chrono::steady_clock::now();
  ending.begun.store(true, std::memory_order_release);
  if (!ending.threads_seen || IsOrphaned()) return;
  // Those on their way back get there.
  PyThreadState* const state = PyEval_SaveThread();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  PyEval_RestoreThread(state);
}

// The program `celer` as this process: it takes over signals and ends the process.
void RunCommand(std::vector<std::string> args) {
  OrRaise(CheckFork());
  std::vector<char*> pointers;
  for (std::string& arg : args) pointers.push_back(arg.data());
  pointers.push_back(nullptr);
  const ReleaseGil release;
  const int code = CelerMain(static_cast<int>(args.size()), pointers.data());
  std::fflush(nullptr);
  _exit(code);
}

}  // namespace

ReleaseGil::ReleaseGil() : state_(nullptr) {
  Ending& ending = TheEnding();
  if (std::this_thread::get_id() != ending.main) ending.threads_seen = true;
  state_ = PyEval_SaveThread();
}

ReleaseGil::~ReleaseGil() {
  constexpr auto kWhile =
      std::chrono::seconds(3);  // an exit function may wait for a lock that this thread holds
  const Ending& ending = TheEnding();
  if (ending.begun.load(std::memory_order_acquire) && std::this_thread::get_id() != ending.main)
    std::this_thread::sleep_until(ending.when + kWhile);
  try {
    PyEval_RestoreThread(state_);
  } catch (...) {
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
  }
}

}  // namespace celer::python

NB_MODULE(_celer, module) {
  namespace nb = nanobind;
  using celer::python::Raised;
  module.doc() = "The library behind the package celer.";
  nb::set_leak_warnings(false);
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Raised& raised) {
      // Names from files may be in it, and Python takes no text that is not UTF-8.
      PyErr_SetString(celer::python::TypeOf(raised.error().code()),
                      celer::utf8::ToValid(raised.what()).c_str());
    }
  });
  module.def("version", [] { return std::string(celer::Version()); });
  celer::SetLogSink(
      [](celer::LogLevel level, std::string_view text) { celer::python::TheMessages().Push(level, text); });
  module.def("messages", [] { return celer::python::TheMessages().Take(); });
  module.def("run_command", &celer::python::RunCommand, nb::arg("args"));
  celer::python::TheEnding();
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&celer::python::End));
  celer::python::BindModel(module);
  celer::python::BindGraph(module);
  celer::python::BindLimits(module);
}
