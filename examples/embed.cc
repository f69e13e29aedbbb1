// How near texts are to the first one: the cosines of their embeddings.
//   embed model.gguf "a cat" "a kitten" "a theorem"
#include <celer/engine.h>
#include <celer/text.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

namespace {

int Fail(const celer::Error& error) {
  std::fprintf(stderr, "error: %s\n", error.message().c_str());
  return 1;
}

double Dot(const std::vector<float>& a, const std::vector<float>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: embed MODEL TEXT TEXT...\n");
    return 2;
  }
  auto prompter = celer::Prompter::Load({.model = argv[1]});
  if (!prompter) return Fail(prompter.error());
  auto engine = celer::Engine::Load({.model = argv[1]});
  if (!engine) return Fail(engine.error());

  std::map<int64_t, int> text_of;  // by request
  for (int i = 2; i < argc; ++i) {
    celer::Request request;
    request.prompt = prompter->EncodeText(argv[i]);
    request.pooling = celer::Pooling::kMean;  // or kLast, as the model was trained
    const auto id = (*engine)->Submit(std::move(request));
    if (!id) return Fail(id.error());
    text_of[*id] = i;
  }
  std::map<int, std::vector<float>> embeddings;
  while ((*engine)->HasWork())
    for (celer::TokenEvent& event : (*engine)->Step()) {
      if (!event.error.empty()) return Fail(celer::Error::Invalid(event.error));
      embeddings[text_of.at(event.request)] = std::move(event.embedding);
    }
  const std::vector<float>& first = embeddings.at(2);
  for (const auto& [i, embedding] : embeddings)
    std::printf("%.4f  %s\n",
                Dot(first, embedding) / std::sqrt(Dot(first, first) * Dot(embedding, embedding)), argv[i]);
  return 0;
}
