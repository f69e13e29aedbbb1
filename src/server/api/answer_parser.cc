#include "server/api/answer_parser.h"

#include <algorithm>
#include <array>

#include "io/json/json_scan.h"
#include "io/json/ordered_json.h"
#include "server/api/call_readers.h"

namespace celer::server {
namespace {

using Json = nlohmann::ordered_json;

// Of the harmony format. A header is what stands before kMessage.
constexpr std::string_view kStart = "<|start|>", kChannel = "<|channel|>", kMessage = "<|message|>";
constexpr std::string_view kMessageEnds[] = {"<|end|>", "<|return|>", "<|call|>", kStart, kChannel};

// The word behind `key` in a header: to=functions.f, <|channel|>analysis.
std::string_view WordAfter(std::string_view header, std::string_view key) {
  const size_t at = header.find(key);
  if (at == std::string_view::npos) return {};
  header.remove_prefix(at + key.size());
  return header.substr(0, std::min(header.find_first_of(" \t\r\n<"), header.size()));
}

}  // namespace

nlohmann::ordered_json ParsePartialObject(std::string_view text) {
  // Positions at which the text could be truncated and closed, with the closing brackets.
  size_t good = 0;
  std::string open, good_open;
  ForEachOutsideStrings(text, [&](size_t i, char c) {
    if (c == '{' || c == '[') open.insert(open.begin(), c == '{' ? '}' : ']');
    if (std::ssize(open) > kCallLimits.max_depth) return false;
    if ((c == '}' || c == ']') && !open.empty()) open.erase(open.begin());
    const bool after = c == '{' || c == '[' || c == '}' || c == ']';
    if (!after && c != ',') return true;
    good = i + (after ? 1 : 0);
    good_open = open;
    return true;
  });
  auto json = ParseOrderedJson(std::string(text.substr(0, good)) + good_open, "a call", kCallLimits);
  return json && json->is_object() ? std::move(*json) : Json::object();
}

AnswerParts::AnswerParts(PartsOptions options)
    : options_(std::move(options)),
      tools_(&SyntaxOf(options_.tools)),
      thoughts_(options_.thoughts ? options_.thoughts : ThoughtsOf("</think>")),
      channels_(thoughts_->channels || options_.tools == ToolStyle::kHarmony) {
  const bool whole = options_.tools != ToolStyle::kNone && tools_->begin.empty();
  if (channels_) {
    content_tags_.assign(std::begin(kMessageEnds), std::end(kMessageEnds));
  } else {
    content_tags_ = {tools_->begin, tools_->dropped[0], tools_->dropped[1]};
    if (options_.reasoning)
      content_tags_.insert(content_tags_.end(), thoughts_->dropped.begin(), thoughts_->dropped.end());
    if (options_.reasoning && options_.starts_in_reasoning) {
      where_ = Where::kReasoning;
      trim_ = true;
    } else if (!options_.reasoning && !whole) {
      where_ = Where::kContent;
    }
  }
  std::erase(content_tags_, "");
}

std::vector<Part> AnswerParts::Push(std::string_view text) {
  std::vector<Part> out;
  scanner_.Push(text);
  while (Step(false, &out)) {
  }
  return out;
}

std::vector<Part> AnswerParts::Finish(bool truncated) {
  std::vector<Part> out;
  truncated_ = truncated;
  // With a forced call, what may become its first tag is not text.
  if (options_.must_call && truncated && (where_ == Where::kStart || where_ == Where::kContent)) {
    scanner_.Skip(scanner_.rest().size());
    spaces_.clear();
  }
  while (Step(true, &out)) {
  }
  Append(where_ == Where::kReasoning ? Part::Kind::kReasoning : Part::Kind::kContent, spaces_, &out);
  if (truncated && options_.must_call && where_ != Where::kReasoning && !called_ &&
      !options_.only_tool.empty())
    EmitCall({.kind = Part::Kind::kCall, .name = options_.only_tool, .partial = true}, &out);
  return out;
}

void AnswerParts::Append(Part::Kind kind, std::string_view text, std::vector<Part>* out) {
  if (text.empty()) return;
  if (!out->empty() && out->back().kind == kind)
    out->back().text += text;
  else
    out->push_back({.kind = kind, .text = std::string(text)});
}

void AnswerParts::Emit(Part::Kind kind, std::string_view text, std::vector<Part>* out) {
  if (trim_) {
    SkipSpace(&text);
    if (text.empty()) return;
    trim_ = false;
  }
  // White space that stands before a tag belongs to it.
  const bool hold = kind == Part::Kind::kReasoning || !content_tags_.empty();
  size_t end = text.size();
  while (hold && end > 0 && IsSpace(text[end - 1])) --end;
  if (end > 0) {
    Append(kind, spaces_, out);
    Append(kind, text.substr(0, end), out);
    spaces_.clear();
  }
  spaces_ += text.substr(end);
}

void AnswerParts::EmitCall(Part call, std::vector<Part>* out) {
  if (called_ && !options_.parallel) return;
  called_ = true;
  out->push_back(std::move(call));
}

// False: what was read is text.
bool AnswerParts::EmitCalls(std::vector<Part> calls, bool read, bool cut, std::vector<Part>* out) {
  const bool required = cut && options_.must_call;
  if (!required && (!read || calls.empty())) return false;
  // An answer in JSON may have a name, too.
  const bool no_arguments = !calls.empty() && calls.back().partial && calls.back().text.empty();
  if (!required && tools_->begin.empty() && !channels_ && no_arguments) return false;
  for (Part& call : calls) EmitCall(std::move(call), out);
  spaces_.clear();
  trim_ = true;
  return true;
}

bool AnswerParts::Step(bool last, std::vector<Part>* out) {
  switch (where_) {
    case Where::kStart:
      return StepStart(last);
    case Where::kReasoning:
      return StepReasoning(last, out);
    case Where::kContent:
      return StepContent(last, out);
    case Where::kCall:
      return StepCall(last, out);
    case Where::kHeader:
      return StepHeader(last, out);
    case Where::kMessageCall:
      return StepMessageCall(last, out);
  }
  return false;
}

// What the answer begins with decides.
bool AnswerParts::StepStart(bool last) {
  std::string_view rest = scanner_.rest();
  SkipSpace(&rest);
  const size_t spaces = scanner_.rest().size() - rest.size();
  if (!trim_) spaces_ += scanner_.rest().substr(0, spaces);
  scanner_.Skip(spaces);
  if (rest.empty() && !last) return false;
  // Whether it begins with this; `wait` if that cannot be told yet.
  bool wait = false;
  const auto Begins = [&](std::string_view with) {
    wait = wait || (!last && rest.size() < with.size() && with.starts_with(rest));
    return !with.empty() && rest.starts_with(with);
  };
  if (channels_ && Begins("to=")) {
    where_ = Where::kHeader;
    return true;
  }
  if (!channels_ && options_.reasoning && Begins(thoughts_->begin)) {
    scanner_.Skip(thoughts_->begin.size());
    spaces_.clear();
    trim_ = true;
    where_ = Where::kReasoning;
    return true;
  }
  if (wait) return false;
  const bool json = options_.tools == ToolStyle::kJson || options_.tools == ToolStyle::kPythonList;
  const bool list = options_.tools == ToolStyle::kPythonList && rest.starts_with('[');
  where_ = (json && rest.starts_with('{')) || list ? Where::kCall : Where::kContent;
  return true;
}

bool AnswerParts::StepReasoning(bool last, std::vector<Part>* out) {
  const std::span<const std::string_view> ends =
      channels_ ? std::span<const std::string_view>(kMessageEnds) : std::span(&thoughts_->end, 1);
  const TagScanner::Found found = scanner_.Next(ends, last);
  Emit(Part::Kind::kReasoning, found.before, out);
  if (found.tag == TagScanner::kNone) return false;
  spaces_.clear();
  if (channels_) {
    EndMessage(found.tag);
    return true;
  }
  options_.reasoning = false;
  trim_ = true;
  where_ = Where::kStart;
  return true;
}

bool AnswerParts::StepContent(bool last, std::vector<Part>* out) {
  const TagScanner::Found found = scanner_.Next(content_tags_, last);
  Emit(Part::Kind::kContent, found.before, out);
  if (found.tag == TagScanner::kNone) return false;
  if (channels_) {
    spaces_.clear();
    EndMessage(found.tag);
  } else if (content_tags_[static_cast<size_t>(found.tag)] == tools_->begin) {
    where_ = Where::kCall;
  } else {
    spaces_.clear();
    trim_ = true;
  }
  return true;
}

// A block of calls. Without an end of its own it lasts until the answer's.
bool AnswerParts::StepCall(bool last, std::vector<Part>* out) {
  const TagScanner::Found found = scanner_.Next({&tools_->end, 1}, last);
  block_ += found.before;
  const bool ended = found.tag != TagScanner::kNone;
  if (!ended && !last) return false;
  const bool cut = !ended && truncated_;
  std::vector<Part> calls;
  const bool read = tools_->read({block_, definitions(), cut}, &calls);
  where_ = Where::kContent;
  if (!EmitCalls(std::move(calls), read, cut, out))  // not calls after all
    Emit(Part::Kind::kContent,
         std::string(tools_->begin) + block_ + std::string(ended ? tools_->end : std::string_view()), out);
  block_.clear();
  return true;
}

bool AnswerParts::StepHeader(bool last, std::vector<Part>* out) {
  const TagScanner::Found found = scanner_.Next({&kMessage, 1}, last);
  block_ += found.before;
  if (found.tag == TagScanner::kNone) {
    if (last && !truncated_) Emit(Part::Kind::kContent, block_, out);
    return false;
  }
  const std::string_view to = WordAfter(block_, "to=");
  constexpr std::string_view kFunctions = "functions.";
  spaces_.clear();
  if (options_.tools == ToolStyle::kHarmony && to.starts_with(kFunctions)) {
    name_ = to.substr(kFunctions.size());
    where_ = Where::kMessageCall;
  } else {
    const bool thought = options_.reasoning && WordAfter(block_, kChannel) == "analysis";
    where_ = thought ? Where::kReasoning : Where::kContent;
  }
  trim_ = false;
  block_.clear();
  return true;
}

bool AnswerParts::StepMessageCall(bool last, std::vector<Part>* out) {
  const TagScanner::Found found = scanner_.Next(kMessageEnds, last);
  block_ += found.before;
  const bool ended = found.tag != TagScanner::kNone;
  if (!ended && !last) return false;
  const bool cut = !ended && truncated_;
  std::vector<Part> calls;
  const bool read = AddJsonCall(name_, block_, cut, &calls);
  where_ = Where::kContent;
  if (!EmitCalls(std::move(calls), read, cut, out)) Emit(Part::Kind::kContent, block_, out);
  block_.clear();
  if (ended) EndMessage(found.tag);
  return ended;
}

// A message ended with one of kMessageEnds: perhaps with the header of the next.
void AnswerParts::EndMessage(int tag) {
  const std::string_view end = kMessageEnds[tag];
  const bool header = end == kStart || end == kChannel;
  where_ = header ? Where::kHeader : Where::kContent;
  if (header) block_ = end;
}

const Json& AnswerParts::definitions() const {
  static const Json kNone;
  return options_.definitions ? *options_.definitions : kNone;
}

}  // namespace celer::server
