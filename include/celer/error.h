// Errors as values. Bad input comes back as a Result whose message names the file, the field, the value and
// what to do; a programmer's mistake aborts (base/check.h). The names follow std::expected, which is C++23.
#pragma once

#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

namespace celer {

class [[nodiscard]] Error {
 public:
  enum class Code {
    kInvalid,
    kNotFound,
    kCorrupt,
    kUnsupported,
    kOutOfMemory,
    kIo,
    kDevice,
    kCancelled,
    kNotFinite
  };

  Error(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  // Each takes the pieces of one sentence: Error::Corrupt(path, ": 'x' has ", n, " rows, expected ", m).
  template <class... T>
  static Error Invalid(const T&... parts) {
    return {Code::kInvalid, Join(parts...)};
  }  // flags, arguments, requests
  template <class... T>
  static Error NotFound(const T&... parts) {
    return {Code::kNotFound, Join(parts...)};
  }
  template <class... T>
  static Error Corrupt(const T&... parts) {
    return {Code::kCorrupt, Join(parts...)};
  }  // a file that lies
  template <class... T>
  static Error Unsupported(const T&... parts) {
    return {Code::kUnsupported, Join(parts...)};
  }
  template <class... T>
  static Error OutOfMemory(const T&... parts) {
    return {Code::kOutOfMemory, Join(parts...)};
  }
  template <class... T>
  static Error Io(const T&... parts) {
    return {Code::kIo, Join(parts...)};
  }
  template <class... T>
  static Error Device(const T&... parts) {
    return {Code::kDevice, Join(parts...)};
  }
  template <class... T>
  static Error Cancelled(const T&... parts) {
    return {Code::kCancelled, Join(parts...)};
  }
  template <class... T>
  static Error NotFinite(const T&... parts) {
    return {Code::kNotFinite, Join(parts...)};
  }  // the model computed NaN or infinity

  Code code() const { return code_; }
  const std::string& message() const { return message_; }

  // The same error, seen from one level up: "loading layer 3: <message>".
  Error WithContext(std::string_view context) const { return {code_, Join(context, ": ", message_)}; }

 private:
  template <class... T>
  static std::string Join(const T&... parts) {
    std::ostringstream out;
    (out << ... << parts);
    return out.str();
  }

  Code code_;
  std::string message_;
};

template <class T>
class [[nodiscard]] Result {
 public:
  using value_type = T;

  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT: implicit, as std::expected
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT

  bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }

  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT

  bool has_value() const { return !error_; }
  explicit operator bool() const { return has_value(); }
  const Error& error() const { return *error_; }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

}  // namespace celer
