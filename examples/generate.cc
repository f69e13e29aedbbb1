// Asks a model a question and prints the answer as it comes.
//   generate model.gguf "Why is the sky blue?"
#include <celer/engine.h>
#include <celer/text.h>
#include <celer/version.h>

#include <cstdio>
#include <vector>

namespace {

int Fail(const celer::Error& error) {
  std::fprintf(stderr, "error: %s\n", error.message().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "celer %s\nusage: generate MODEL QUESTION\n", celer::Version().data());
    return 2;
  }
  auto prompter = celer::Prompter::Load({.model = argv[1]});
  if (!prompter) return Fail(prompter.error());
  auto engine = celer::Engine::Load({.model = argv[1], .sequences = 1});
  if (!engine) return Fail(engine.error());
  if (const auto fits = prompter->CheckFits((*engine)->info()); !fits) return Fail(fits.error());

  celer::Request request;
  request.sampling = prompter->default_sampling();
  request.stop_tokens = prompter->end_tokens();
  request.max_tokens = 200;
  if (prompter->has_chat_template()) {
    auto prompt = prompter->EncodeChat(std::vector<celer::ChatMessage>{{"user", argv[2]}});
    if (!prompt) return Fail(prompt.error());
    request.prompt = std::move(*prompt);
  } else {
    request.prompt = prompter->EncodeText(argv[2]);
  }
  if (const auto submitted = (*engine)->Submit(std::move(request)); !submitted)
    return Fail(submitted.error());

  celer::TextStream stream(*prompter);
  while ((*engine)->HasWork())
    for (celer::TokenEvent& event : (*engine)->Step()) {
      const celer::TextDelta delta = stream.Push(std::move(event));
      if (delta.finish == celer::FinishReason::kError)
        return Fail(celer::Error(celer::Error::Code::kNotFinite, delta.error));
      std::fputs(delta.text.c_str(), stdout);
      std::fflush(stdout);
    }
  std::printf("\n");
  return 0;
}
