#include "c_api/guard.h"

#include "celer/version.h"

namespace celer::c_api {
namespace {

// A text that needs no memory where there is none.
thread_local std::string last_error;
thread_local bool out_of_memory = false;

celer_code StatusOf(Error::Code code) {
  switch (code) {
    case Error::Code::kInvalid:
      return CELER_INVALID;
    case Error::Code::kNotFound:
      return CELER_NOT_FOUND;
    case Error::Code::kCorrupt:
      return CELER_CORRUPT;
    case Error::Code::kUnsupported:
      return CELER_UNSUPPORTED;
    case Error::Code::kOutOfMemory:
      return CELER_OUT_OF_MEMORY;
    case Error::Code::kIo:
      return CELER_IO;
    case Error::Code::kDevice:
      return CELER_DEVICE;
    case Error::Code::kCancelled:
      return CELER_CANCELLED;
    case Error::Code::kNotFinite:
      return CELER_NOT_FINITE;
  }
  return CELER_INVALID;
}

}  // namespace

celer_code Fail(const Error& error) {
  last_error = error.message();
  out_of_memory = false;
  return StatusOf(error.code());
}

celer_code FailOutOfMemory() noexcept {
  out_of_memory = true;
  return CELER_OUT_OF_MEMORY;
}

}  // namespace celer::c_api

const char* celer_last_error() {
  return celer::c_api::out_of_memory ? "out of memory" : celer::c_api::last_error.c_str();
}

const char* celer_version() {
  return celer::Version().data();
}
