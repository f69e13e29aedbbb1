// How the C interface turns errors and exceptions into a celer_code and a sentence.
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "base/process/fork.h"
#include "base/result.h"
#include "celer/celer.h"

namespace celer::c_api {

// Keeps the sentence for celer_last_error().
celer_code Fail(const Error& error);
celer_code FailOutOfMemory() noexcept;

// Runs a function that returns a Status; nothing is thrown past it. In a child of a process that had loaded something it is
// not run: it would wait for threads that are gone.
template <class Fn>
celer_code Guard(const Fn& fn) noexcept {
  try {
    Status status = CheckFork();
    if (status) status = fn();
    return status ? CELER_OK : Fail(status.error());
  } catch (const std::bad_alloc&) {
    return FailOutOfMemory();
  } catch (const std::exception& error) {
    try {
      return Fail(Error::Io(error.what()));
    } catch (...) {
      return FailOutOfMemory();
    }
  } catch (...) {
    return FailOutOfMemory();
  }
}

// Of this or of an older header. Structs hold pointers, so that none ends in the middle of one.
template <class T>
bool IsSizeOf(size_t struct_size) {
  return struct_size >= sizeof(size_t) && struct_size <= sizeof(T) && struct_size % alignof(T) == 0;
}

// Defaults for a caller whose struct has `struct_size` bytes, which may be fewer or more than are known here.
template <class T>
void Init(const T& defaults, size_t struct_size, T* out) {
  constexpr size_t kMost = 4096;  // of any header: no memory is written by a size that is a mistake
  if (!out || struct_size < sizeof(size_t)) return;
  if (struct_size <= kMost) {
    std::memset(static_cast<void*>(out), 0, struct_size);
    std::memcpy(static_cast<void*>(out), &defaults, std::min(struct_size, sizeof(T)));
  }
  out->struct_size = struct_size;  // which other functions refuse if it is wrong
}

// A struct of a caller who knows only its first `struct_size` bytes, over the defaults.
template <class T>
Status Read(const T* from, const char* name, T* out) {
  if (!from) return Error::Invalid(name, " is null");
  if (!IsSizeOf<T>(from->struct_size))
    return Error::Invalid(name, ".struct_size is ", from->struct_size, ", expected sizeof(", name, "), ",
                          sizeof(T), "; its _init function sets it");
  std::memcpy(static_cast<void*>(out), from, from->struct_size);
  return {};
}

// The other way: no byte behind the caller's struct is written.
template <class T>
Status Write(const T& from, const char* name, T* out) {
  if (!out) return Error::Invalid(name, " is null");
  const size_t size = out->struct_size;
  if (!IsSizeOf<T>(size))
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
