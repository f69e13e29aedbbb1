// Writes a smaller form of a model, and says what that costs on a text.
//   quantize model.gguf small.gguf q4_k_m text.txt
#include <celer/engine.h>
#include <celer/eval.h>
#include <celer/quantize.h>
#include <celer/text.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

namespace {

int Fail(const celer::Error& error) {
  std::fprintf(stderr, "error: %s\n", error.message().c_str());
  return 1;
}

celer::Result<celer::Perplexity> Measure(const std::string& model, const celer::Prompter& prompter,
                                         const std::string& text) {
  constexpr int64_t kWindow = 128;
  auto engine = celer::Engine::Load({.model = model, .context = kWindow});
  if (!engine) return engine.error();
  return celer::MeasurePerplexity(**engine, prompter, text, {.window = kWindow});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: quantize MODEL OUT FORMAT TEXT\n");
    return 2;
  }
  std::ifstream file(argv[4]);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto prompter = celer::Prompter::Load({.model = argv[1]});
  if (!prompter) return Fail(prompter.error());

  celer::QuantizeOptions options;
  options.weights = argv[3];
  options.calibration = prompter->EncodeText(text);  // what matters in it is rounded with more care
  options.window = 128;
  options.progress = [](const char* what, int64_t done, int64_t total) -> celer::Status {
    if (done == total) std::printf("%s: done\n", what);
    return {};  // an error would end the work
  };
  const auto report = celer::QuantizeModel(argv[1], argv[2], options);
  if (!report) return Fail(report.error());
  std::printf("%.2f MB, was %.2f; %.2f bits per weight\n", static_cast<double>(report->bytes_after) / 1e6,
              static_cast<double>(report->bytes_before) / 1e6, report->bits_per_weight);
  for (const char* model : {argv[1], argv[2]}) {
    const auto found = Measure(model, *prompter, text);
    if (!found) return Fail(found.error());
    std::printf("%s: perplexity %.3f +- %.3f\n", model, found->value(), found->error());
  }
  return 0;
}
