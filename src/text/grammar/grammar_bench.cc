// What a grammar costs: to compile, and for each token's mask. CELER_BENCH_TOKENIZER names a real tokenizer
// (a GGUF file or a model folder); without it, vocabularies of made-up words stand in for one of 128k and one
// of 32k tokens.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "text/grammar/grammar.h"
#include "text/tokenizer/load_tokenizer.h"

namespace celer {
namespace {

constexpr const char* kPerson =
    R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"}, "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
        "address": {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}, "zip": {"type": "string",
        "pattern": "^[0-9]{5}$"}}, "required": ["street", "city"], "additionalProperties": false}},
        "required": ["name", "age"], "additionalProperties": false})";
constexpr const char* kBounded =
    R"({"type": "object", "properties": {"title": {"type": "string", "minLength": 1, "maxLength": 60}, "text": {"type": "string", "maxLength": 400},
        "score": {"type": "number", "minimum": 0, "maximum": 1}, "labels": {"type": "array", "items": {"enum": ["red", "green", "blue"]},
        "minItems": 1, "maxItems": 3}}, "required": ["title", "text", "score", "labels"], "additionalProperties": false})";
constexpr const char* kTree =
    R"({"$defs": {"node": {"type": "object", "properties": {"value": {"type": "string"}, "children": {"type": "array", "items":
        {"$ref": "#/$defs/node"}}}, "required": ["value"], "additionalProperties": false}}, "$ref": "#/$defs/node"})";
constexpr const char* kAny = R"({"type": "object"})";

// Every byte, then words of two to nine letters, half of them with a blank before, some with punctuation
// behind.
Grammar::Table MadeUp(int size) {
  std::mt19937 random(3);
  std::vector<std::string> bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
  bytes.emplace_back("<end>");
  const char* behind[] = {"", "", "", "", "", "\"", "\",", "\":", "(", ".", ","};
  while (static_cast<int>(bytes.size()) < size) {
    std::string word = random() % 2 ? " " : "";
    const unsigned length = 2 + random() % 8;
    for (unsigned i = 0; i < length; ++i)
      word += random() % 9 == 0 ? "é" : std::string(1, static_cast<char>('a' + random() % 26));
    bytes.push_back(word + behind[random() % std::size(behind)]);
  }
  return TokenTable::FromBytes(std::move(bytes), {256});
}

const Grammar::Table& Vocabulary(int size) {
  static std::map<int, Grammar::Table> tables;
  Grammar::Table& table = tables[size];
  if (table) return table;
  if (const char* path = std::getenv("CELER_BENCH_TOKENIZER")) {
    const auto tokenizer = LoadTokenizer(path);
    if (tokenizer) table = TokenTable::FromTokenizer(**tokenizer);
  }
  if (!table) table = MadeUp(size);
  return table;
}

void Compile(benchmark::State& state, const char* schema) {
  const Grammar::Table& table = Vocabulary(static_cast<int>(state.range(0)));
  size_t states = 0, bytes = 0;
  for (auto _ : state) {
    const auto grammar = Grammar::FromJsonSchema(schema, table);
    if (!grammar) return state.SkipWithError(grammar.error().message().c_str());
    states = (*grammar)->states();
    bytes = (*grammar)->bytes();
  }
  state.counters["states"] = static_cast<double>(states);
  state.counters["KiB"] = static_cast<double>(bytes) / 1024;
}

// The mask and the acceptance of one random token, over answers of up to 200 tokens. `fresh`: each answer has
// a newly compiled grammar (not counted), so that nothing is cached but what compiling computes.
void Token(benchmark::State& state, const char* schema, bool fresh) {
  const Grammar::Table& table = Vocabulary(static_cast<int>(state.range(0)));
  auto grammar = Grammar::FromJsonSchema(schema, table);
  if (!grammar) return state.SkipWithError(grammar.error().message().c_str());
  std::mt19937 random(5);
  std::vector<uint32_t> bits(table->mask_words());
  std::vector<int32_t> allowed;
  GrammarState at(*grammar);
  int written = 0;
  for (auto _ : state) {
    at.Mask(bits);
    state.PauseTiming();
    allowed.clear();
    for (size_t word = 0; word < bits.size(); ++word)
      for (uint32_t rest = bits[word]; rest != 0; rest &= rest - 1)
        allowed.push_back(static_cast<int32_t>(word * 32) + __builtin_ctz(rest));
    const int32_t token = allowed[random() % allowed.size()];
    state.ResumeTiming();
    at.Accept(token);
    if (table->IsEnd(token) || ++written == 200) {
      state.PauseTiming();
      if (fresh) grammar = Grammar::FromJsonSchema(schema, table);
      at = GrammarState(*grammar);
      written = 0;
      state.ResumeTiming();
    }
  }
}

void ForVocabularies(benchmark::internal::Benchmark* bench) {
  bench->Arg(128'000)->Arg(32'000);
}

BENCHMARK_CAPTURE(Compile, person, kPerson)->Apply(ForVocabularies)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Compile, bounded, kBounded)->Apply(ForVocabularies)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Compile, tree, kTree)->Apply(ForVocabularies)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Compile, any_object, kAny)->Apply(ForVocabularies)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Token, person_fresh, kPerson, true)
    ->Apply(ForVocabularies)
    ->Iterations(2000)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Token, person, kPerson, false)
    ->Apply(ForVocabularies)
    ->Iterations(5000)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Token, bounded_fresh, kBounded, true)
    ->Apply(ForVocabularies)
    ->Iterations(2000)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Token, bounded, kBounded, false)
    ->Apply(ForVocabularies)
    ->Iterations(5000)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Token, tree, kTree, false)
    ->Apply(ForVocabularies)
    ->Iterations(5000)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Token, any_object, kAny, false)
    ->Apply(ForVocabularies)
    ->Iterations(5000)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace celer
