// The chat template of a model: a Jinja program that turns a conversation into the prompt text. It renders
// what transformers' apply_chat_template renders, to the byte, and it is untrusted code: sandboxed to the
// variables below, and stopped with an error when its budget of steps and memory is spent.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/result.h"
#include "text/template/jinja/limits.h"

namespace celer {

namespace jinja {
struct Template;
}

class ChatTemplate {  // immutable; threads may share one
 public:
  // An error names the line of the template.
  static Result<ChatTemplate> Compile(std::string_view source);

  struct Options {
    bool add_generation_prompt = true;
    std::string bos_token, eos_token;  // empty: the model has none, and the variable is undefined
    nlohmann::ordered_json extra;      // an object of more variables, such as enable_thinking or documents
    std::optional<std::time_t> now;    // for strftime_now(); the current time if not given
    // A message's reasoning has three names: reasoning_content, thinking, reasoning. By default a template
    // sees the names that the caller gave. If set, reasoning under a name that the template does not read is
    // also given under the one that it reads; where the template refuses that, it gets the messages as they
    // are.
    bool fit_reasoning = false;
    jinja::Limits limits;
  };
  // `messages`: an array of objects with role and content. `tools`: an array of JSON schemas, or null.
  Result<std::string> Render(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                             const Options& options) const;

 private:
  std::string RenderOnce(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                         const Options& options) const;  // throws TemplateError
  explicit ChatTemplate(std::shared_ptr<const jinja::Template> program) : program_(std::move(program)) {}

  std::shared_ptr<const jinja::Template> program_;
};

}  // namespace celer
