// What the files of the Python module share: errors as exceptions, and what fork() leaves of a process.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <utility>

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

// Threads do not survive fork(), and the library's pool has threads. So what was loaded before a fork cannot be used
// in the child, nor can anything be loaded there once the parent has loaded something.
void NoteUse();     // something is loaded: throws in such a child
void CheckFork();   // throws in a child of a process that had loaded something
bool IsOrphaned();  // likewise, as a question: destructors must not wait for threads that are gone

// Owns what has threads. In a child it is left alone: its memory is the parent's, copied on write.
template <class T>
class Guarded {
 public:
  explicit Guarded(std::unique_ptr<T> value) : value_(std::move(value)) {}
  Guarded(Guarded&&) = delete;
  Guarded& operator=(Guarded&& other) noexcept {
    Reset();
    value_ = std::move(other.value_);
    return *this;
  }
  ~Guarded() { Reset(); }

  void Reset() {
    if (IsOrphaned())
      static_cast<void>(value_.release());
    else
      value_.reset();
  }
  T* get() const { return value_.get(); }
  T& operator*() const { return *value_; }
  T* operator->() const { return value_.get(); }
  explicit operator bool() const { return value_ != nullptr; }

 private:
  std::unique_ptr<T> value_;
};

void BindModel(nb::module_& module);
void BindGraph(nb::module_& module);
void BindLimits(nb::module_& module);

}  // namespace celer::python
