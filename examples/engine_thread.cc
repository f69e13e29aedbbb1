// Several questions at once, each from a thread of its own, on one engine; the last one is cancelled after five
// tokens.
//   engine_thread model.gguf "Why is the sky blue?" "What is a prime number?" ...
#include <celer/engine_thread.h>
#include <celer/text.h>

#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

struct Answer {
  std::string text = {}, error = {};
  celer::FinishReason finish = celer::FinishReason::kNone;
};

Answer Ask(celer::EngineThread& engine, const celer::Prompter& prompter, const char* question, int64_t most) {
  celer::Request request;
  request.prompt = prompter.EncodeText(question);
  request.stop_tokens = prompter.end_tokens();
  request.max_tokens = 32;
  auto ticket = engine.Submit(std::move(request));
  if (!ticket) return {.error = ticket.error().message()};
  Answer answer;
  celer::TextStream stream(prompter);
  int64_t tokens = 0;
  while (auto event = ticket->Next()) {
    celer::TextDelta delta = stream.Push(std::move(*event));
    answer.text += delta.text;
    answer.error = delta.error;
    answer.finish = delta.finish;
    if (++tokens == most) ticket->Cancel();  // its end still comes, as an event
  }
  return answer;
}

int Fail(const celer::Error& error) {
  std::fprintf(stderr, "error: %s\n", error.message().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: engine_thread MODEL QUESTION...\n");
    return 2;
  }
  auto prompter = celer::Prompter::Load({.model = argv[1]});
  if (!prompter) return Fail(prompter.error());
  auto loaded = celer::Engine::Load({.model = argv[1]});
  if (!loaded) return Fail(loaded.error());
  celer::EngineThread engine(std::move(*loaded));

  const int questions = argc - 2;
  std::vector<Answer> answers(static_cast<size_t>(questions));
  std::vector<std::thread> threads;
  for (int i = 0; i < questions; ++i)
    threads.emplace_back([&, i] {
      answers[static_cast<size_t>(i)] = Ask(engine, *prompter, argv[i + 2], i + 1 == questions ? 5 : -1);
    });
  for (std::thread& thread : threads) thread.join();
  engine.Stop(celer::EngineThread::Ending::kDrain);

  for (size_t i = 0; i < answers.size(); ++i) {
    if (!answers[i].error.empty()) return Fail(celer::Error::Invalid(answers[i].error));
    std::printf("%s\n  %s [%s]\n", argv[i + 2], answers[i].text.c_str(), celer::Name(answers[i].finish));
  }
  const celer::EngineStats stats = engine.stats();
  std::printf("%lld tokens in %lld steps\n", static_cast<long long>(stats.generated_tokens),
              static_cast<long long>(stats.steps));
  return 0;
}
