// The prompts and bodies of a load's requests.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <sstream>

#include "loadtest/http/load.h"

namespace celer::cli {
namespace {

// Common words: with a space before it, each is one token of nearly every vocabulary.
const std::vector<std::string>& CommonWords() {
  static const std::vector<std::string> words = [] {
    std::istringstream text{std::string(LoadWordFiles().front().body)};
    return std::vector<std::string>(std::istream_iterator<std::string>(text), {});
  }();
  return words;
}

std::string Words(const std::vector<int32_t>& numbers) {
  std::string text;
  for (const int32_t number : numbers) {
    if (!text.empty()) text += ' ';
    text += CommonWords()[number];
  }
  return text;
}

}  // namespace

Trace RequestMaker::InWords(Trace trace) const {
  if (token_ids > 0) return trace;
  trace.block_tokens *= words_per_token;
  for (TraceRequest& request : trace.requests) {
    const double words = (static_cast<double>(request.prompt) - tokens_before) * words_per_token;
    request.prompt = std::max<int64_t>(1, std::llround(words));
  }
  return trace;
}

nlohmann::json RequestMaker::Body(const Trace& trace, size_t i, bool stream) const {
  nlohmann::json body = {
      {"model", model}, {"max_tokens", trace.requests[i].output}, {"temperature", 0}, {"ignore_eos", true}};
  if (token_ids > 0)
    body["prompt"] = PromptOf(trace, i, token_ids);
  else if (std::string text = Words(PromptOf(trace, i, std::ssize(CommonWords()))); api == ServerApi::kChat)
    body["messages"] = nlohmann::json::array({{{"role", "user"}, {"content", std::move(text)}}});
  else
    body["prompt"] = std::move(text);
  if (stream) {
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}};
  }
  if (!more.is_null()) body.merge_patch(more);
  return body;
}

}  // namespace celer::cli
