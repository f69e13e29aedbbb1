// How the C interface turns errors and exceptions into a celer_code and a sentence.
#pragma once

#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "base/result.h"
#include "celer/celer.h"

namespace celer::c_api {

// Keeps the sentence for celer_last_error().
celer_code Fail(const Error& error);
celer_code FailOutOfMemory() noexcept;

// Runs a function that returns a Status; nothing is thrown past it.
template <class Fn>
celer_code Guard(const Fn& fn) noexcept {
  try {
    const Status status = fn();
    return status ? CELER_OK : Fail(status.error());
  } catch (const std::bad_alloc&) {
    return FailOutOfMemory();
  } catch (const std::exception& error) {
    try {
      return Fail(Error::Io(error.what()));
    } catch (...) {
      return FailOutOfMemory();
    }
  }
}

// A struct of a caller who knows only its first `struct_size` bytes, over the defaults.
template <class T>
Status Read(const T* from, const char* name, T* out) {
  if (!from) return Error::Invalid(name, " is null");
  if (from->struct_size < sizeof(size_t) || from->struct_size > sizeof(T))
    return Error::Invalid(name, ".struct_size is ", from->struct_size, ", expected at most ", sizeof(T),
                          "; call its _init function first");
  std::memcpy(static_cast<void*>(out), from, from->struct_size);
  return {};
}

// The other way: no byte behind the caller's struct is written.
template <class T>
Status Write(const T& from, const char* name, T* out) {
  if (!out) return Error::Invalid(name, " is null");
  const size_t size = out->struct_size;
  if (size < sizeof(size_t) || size > sizeof(T))
    return Error::Invalid(name, ".struct_size is ", size, ", expected sizeof(", name, "), ", sizeof(T));
  std::memcpy(static_cast<void*>(out), &from, size);
  out->struct_size = size;
  return {};
}

template <class T>
Status Need(const T* pointer, const char* name) {
  if (!pointer) return Error::Invalid(name, " is null");
  return {};
}

}  // namespace celer::c_api
