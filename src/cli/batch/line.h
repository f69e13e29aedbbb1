// A line of a batch's input: who it is, and what it asks for.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "cli/batch/body.h"

namespace celer::cli {

// Why a line has no answer. `code` is for programs: "invalid_json", "duplicate_id", ...
struct LineError {
  std::string code;
  std::string message;  // one sentence
  int status = 0;       // as a server would have answered; 0: the line itself is bad, so none would have
};

struct BatchLine {
  int64_t number = 0;  // from 1
  size_t bytes = 0;    // with its end
  BodyKind kind = BodyKind::kSimple;
  std::string custom_id = {};           // of OpenAI's format
  nlohmann::ordered_json id = nullptr;  // of the simple one: a string or a whole number; null: it has none
  nlohmann::ordered_json body = nullptr;
  std::optional<LineError> error = {};

  // Names the line among all of the file, also in what is written about it. Empty: only its number does.
  std::string Key() const;
};

// A line without its end. What is wrong with it is in `error`; the other fields are then as far as they are
// known.
BatchLine ParseLine(std::string_view text, int64_t number);

// What is written about a line, on one line. `body` is an answer in OpenAI's form, or of a simple line the
// fields that follow its id.
std::string AnswerText(const BatchLine& line, nlohmann::ordered_json body);
std::string ErrorText(const BatchLine& line, const LineError& error);

// Which line a line of the output or of the error file is about: its key and its number, where they are told.
struct LineName {
  std::string key = {};
  int64_t number = 0;
};
// Nothing if it is no line that a batch writes.
std::optional<LineName> NameOf(std::string_view written);

// Whether a text without an end may be the beginning of such a line.
bool MayBegin(std::string_view written);

// "batch_req_" and the like with digits that are the same for the same line.
std::string MakeId(std::string_view prefix, const BatchLine& line);

}  // namespace celer::cli
