// A text for every line of standard input, in their order, with as many in flight as the engine has room for.
//   batch model.gguf < prompts.txt
#include <celer/engine.h>
#include <celer/text.h>

#include <cstdio>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace {

int Fail(const celer::Error& error) {
  std::fprintf(stderr, "error: %s\n", error.message().c_str());
  return 1;
}

struct Line {
  size_t number;
  celer::TextStream stream;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: batch MODEL < PROMPTS\n");
    return 2;
  }
  auto prompter = celer::Prompter::Load({.model = argv[1]});
  if (!prompter) return Fail(prompter.error());
  auto engine = celer::Engine::Load({.model = argv[1]});
  if (!engine) return Fail(engine.error());

  std::map<int64_t, Line> running;  // by request
  std::vector<std::string> texts;
  for (std::string prompt; std::getline(std::cin, prompt);) {
    celer::Request request;
    request.prompt = prompter->EncodeText(prompt);
    request.stop_tokens = prompter->end_tokens();
    request.max_tokens = 16;
    // What does not fit now waits in the engine. A prompt that can never fit is an error here.
    const auto id = (*engine)->Submit(std::move(request));
    if (!id) return Fail(id.error().WithContext("line " + std::to_string(texts.size() + 1)));
    running.emplace(*id, Line{texts.size(), celer::TextStream(*prompter)});
    texts.emplace_back();
  }
  while ((*engine)->HasWork())
    for (celer::TokenEvent& event : (*engine)->Step()) {
      Line& line = running.at(event.request);
      const celer::TextDelta delta = line.stream.Push(std::move(event));
      if (!delta.error.empty())
        return Fail(celer::Error::Invalid("line ", line.number + 1, ": ", delta.error));
      texts[line.number] += delta.text;
    }
  for (std::string& text : texts) {
    for (char& one : text)
      if (one == '\n') one = ' ';
    std::printf("%s\n", text.c_str());
  }
  return 0;
}
