// Structured output (guided decoding): grammars compiled from requests, as token masks over the vocabulary.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "celer/text.h"
#include "server/api/answer_parser.h"
#include "server/api/conversation.h"
#include "server/api/query.h"
#include "text/grammar/grammar.h"

namespace celer::server {

// Compiles grammars for one vocabulary, with an LRU cache. Thread-safe.
class Grammars {
 public:
  // `tags`: control tokens that the syntax of calls and thoughts is written with; `thought_end`: the tag behind
  // thoughts.
  explicit Grammars(Prompter prompter, std::vector<int32_t> tags = {}, std::string_view thought_end = {})
      : prompter_(std::move(prompter)), tags_(std::move(tags)), thought_end_(thought_end) {}

  // The mask of a constraint. `after_thought`: it applies behind the end of thoughts.
  Refusal MakeMask(const Constraint& constraint, bool after_thought, std::shared_ptr<const TokenMask>* mask);
  // The mask of a forced tool call.
  Refusal MakeToolMask(const ToolChoice& choice, const Json& tools, ToolStyle style, bool parallel,
                       bool after_thought, std::shared_ptr<const TokenMask>* mask);

 private:
  // `with_tags`: the control tokens among the tags are the text that they are named by.
  Grammar::Table Table(bool with_tags);
  Result<Grammar::Pointer> Find(const std::string& key,
                                const std::function<Result<Grammar::Pointer>()>& compile);

  const Prompter prompter_;
  std::mutex mutex_;
  const std::vector<int32_t> tags_;
  const std::string thought_end_;
  Grammar::Table table_, tag_table_;  // built lazily
  struct CacheEntry {
    std::string key;
    Grammar::Pointer grammar;
  };
  std::list<CacheEntry> cache_;  // most recently used first
};

// The intersection of two masks; either may be null.
std::shared_ptr<const TokenMask> IntersectMasks(std::shared_ptr<const TokenMask> one,
                                                std::shared_ptr<const TokenMask> other);

}  // namespace celer::server
