// An answer that is JSON of a given schema, whatever the model would say.
//   structured model.gguf "Describe a person." '{"type": "object", "properties": {"age": {"type": "integer"}}}'
#include <celer/engine.h>
#include <celer/structured.h>
#include <celer/text.h>

#include <cstdio>
#include <utility>

namespace {

int Fail(const celer::Error& error) {
  std::fprintf(stderr, "error: %s\n", error.message().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: structured MODEL PROMPT SCHEMA\n");
    return 2;
  }
  auto prompter = celer::Prompter::Load({.model = argv[1]});
  if (!prompter) return Fail(prompter.error());
  auto engine = celer::Engine::Load({.model = argv[1]});
  if (!engine) return Fail(engine.error());

  const celer::StructuredOutput structured(*prompter);
  auto mask = structured.JsonSchema(argv[3]);
  if (!mask) return Fail(mask.error());
  celer::Request request;
  request.prompt = prompter->EncodeText(argv[2]);
  request.stop_tokens = prompter->end_tokens();
  request.max_tokens = 200;
  request.mask = *mask;
  if (const auto id = (*engine)->Submit(std::move(request)); !id) return Fail(id.error());

  celer::TextStream stream(*prompter);
  while ((*engine)->HasWork())
    for (celer::TokenEvent& event : (*engine)->Step()) {
      const celer::TextDelta delta = stream.Push(std::move(event));
      if (!delta.error.empty()) return Fail(celer::Error::Invalid(delta.error));
      std::fputs(delta.text.c_str(), stdout);
    }
  std::printf("\n");
  return stream.finish() == celer::FinishReason::kStop ? 0 : 3;  // 3: it was cut off
}
