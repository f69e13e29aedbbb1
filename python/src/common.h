// What the files of the Python module share: errors as exceptions, and what fork() leaves of a process.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <utility>

#include "base/process/fork.h"
#include "base/result.h"

namespace celer::python {

namespace nb = nanobind;

// An Error of the library as the Python exception of the closest meaning. Thrown without the GIL, too.
class Raised : public std::exception {
 public:
  explicit Raised(Error error) : error_(std::move(error)) {}
  const Error& error() const { return error_; }
  const char* what() const noexcept override { return error_.message().c_str(); }

 private:
  Error error_;
};

template <class T>
T OrRaise(Result<T> result) {
  if (!result) throw Raised(result.error());
  return std::move(*result);
}
inline void OrRaise(const Status& status) {
  if (!status) throw Raised(status.error());
}

// Lets other threads of Python run. Python ends its daemon threads when they ask for the GIL while it shuts down: before 3.14 by
// pthread_exit(), whose unwinding would reach functions that let nothing through, and end the process. Such a thread stays here. What
// makes a result for Python may ask for the GIL, too: once the interpreter's exit functions run, threads come back after a while.
class ReleaseGil {
 public:
  ReleaseGil();
  ReleaseGil(const ReleaseGil&) = delete;
  ReleaseGil& operator=(const ReleaseGil&) = delete;
  ~ReleaseGil();

 private:
  PyThreadState* state_;
};

// Owns what has threads. In a child of a process that had loaded something it is left alone (base/process/fork.h): its memory is
// the parent's, copied on write.
template <class T>
std::shared_ptr<T> Guarded(std::unique_ptr<T> value) {
  return std::shared_ptr<T>(value.release(), [](T* one) {
    if (!IsOrphaned()) delete one;
  });
}

void BindModel(nb::module_& module);
void BindGraph(nb::module_& module);
void BindLimits(nb::module_& module);

}  // namespace celer::python
