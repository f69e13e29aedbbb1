#include "c_api/guard.h"

#include "base/utf8.h"
#include "celer/log.h"
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
  last_error = utf8::ToValid(error.message());  // names from files may be in it
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

void celer_set_log(celer_log_function function, void* user, celer_log_level least) {
  // The function's address is all that is kept; an enum of C may hold any number.
  const auto level = static_cast<celer::LogLevel>(std::clamp<int>(least, CELER_LOG_DEBUG, CELER_LOG_ERROR));
  celer::c_api::Guard([&]() -> celer::Status {
    celer::SetLogSink(!function ? celer::LogSink()
                                : [=](celer::LogLevel of, std::string_view message) {
                                    function(user, static_cast<celer_log_level>(of), std::string(message).c_str());
                                  },
                      level);
    return {};
  });
}

const char* celer_version() {
  return celer::Version().data();
}
