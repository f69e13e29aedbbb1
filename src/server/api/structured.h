// Answers that keep to a form: a grammar compiled from what a request asks for becomes a mask over the
// vocabulary.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "celer/text.h"
#include "server/api/answer_parts.h"
#include "server/api/asked.h"
#include "server/api/conversation.h"
#include "text/grammar/grammar.h"

namespace celer::server {

// Compiles grammars for one vocabulary, and keeps those that were used last. Threads may share one.
class Grammars {
 public:
  explicit Grammars(Prompter prompter) : prompter_(std::move(prompter)) {}

  // The mask of a constraint. `after_thought`: it begins behind </think>.
  Refusal MakeMask(const Constraint& constraint, bool after_thought, std::shared_ptr<const TokenMask>* mask);
  // The mask of an answer that has to be calls of these tools.
  Refusal MakeToolMask(const ToolChoice& choice, const Json& tools, ToolStyle style, bool parallel,
                       bool after_thought, std::shared_ptr<const TokenMask>* mask);

 private:
  Grammar::Table Table();
  Result<Grammar::Pointer> Find(const std::string& key,
                                const std::function<Result<Grammar::Pointer>()>& compile);

  const Prompter prompter_;
  std::mutex mutex_;
  Grammar::Table table_;  // made when it is first needed
  struct Kept {
    std::string key;
    Grammar::Pointer grammar;
  };
  std::list<Kept> kept_;  // the last used first
};

// Both masks at once; either may be null.
std::shared_ptr<const TokenMask> Both(std::shared_ptr<const TokenMask> one,
                                      std::shared_ptr<const TokenMask> other);

}  // namespace celer::server
