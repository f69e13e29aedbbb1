// Runs a fuzz target without libFuzzer: replays every file of a corpus, then mutates them.
//   fuzz_gguf [--seconds S] [--runs N] [--seed N] FILE|FOLDER...
// Mutations depend on the seed alone; the clock only ends them early (--seconds). When CELER_FUZZ_KEEP names
// a folder, each input is written to last_input there first, so that the one that ends the program is found.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

namespace fs = std::filesystem;
using Input = std::vector<uint8_t>;

constexpr size_t kMaxInput = 1 << 16;

struct Options {
  double seconds = 0;
  long runs = 1'000'000;
  uint32_t seed = 1;
  std::vector<fs::path> paths;
};

bool ParseOptions(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (!flag.starts_with("--")) {
      options->paths.emplace_back(flag);
    } else if (++i == argc) {
      return false;
    } else if (flag == "--seconds") {
      options->seconds = std::atof(argv[i]);
    } else if (flag == "--runs") {
      options->runs = std::atol(argv[i]);
    } else if (flag == "--seed") {
      options->seed = static_cast<uint32_t>(std::atol(argv[i]));
    } else {
      return false;
    }
  }
  return !options->paths.empty();
}

// In the order of their names, so that a run can be repeated on another machine.
std::vector<fs::path> CorpusFiles(const std::vector<fs::path>& paths) {
  std::vector<fs::path> files;
  for (const fs::path& path : paths) {
    if (!fs::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    for (const auto& entry : fs::recursive_directory_iterator(path))
      if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool Run(const Input& input) {
  if (const char* keep = std::getenv("CELER_FUZZ_KEEP"))
    std::ofstream(fs::path(keep) / "last_input", std::ios::binary)
        .write(reinterpret_cast<const char*>(input.data()), static_cast<std::streamsize>(input.size()));
  // An exact copy on the heap: the sanitizer sees a read behind its end.
  const std::unique_ptr<uint8_t[]> copy(new uint8_t[input.size()]);
  if (!input.empty()) std::memcpy(copy.get(), input.data(), input.size());
  return LLVMFuzzerTestOneInput(copy.get(), input.size()) == 0;
}

// Numbers that break arithmetic: ends of ranges, powers of two, and their neighbours.
uint64_t InterestingNumber(std::mt19937& random) {
  const uint64_t power = uint64_t{1} << random() % 64;
  switch (random() % 4) {
    case 0:
      return power;
    case 1:
      return power - 1;
    case 2:
      return power + 1;
    default:
      return ~uint64_t{0} - random() % 64;
  }
}

void Mutate(Input& input, const std::vector<Input>& corpus, std::mt19937& random) {
  const auto place = [&] { return input.empty() ? 0 : random() % input.size(); };
  switch (random() % 8) {
    case 0:  // a bit
      if (!input.empty()) input[place()] ^= static_cast<uint8_t>(1u << random() % 8);
      break;
    case 1:  // a byte
      if (!input.empty()) input[place()] = static_cast<uint8_t>(random());
      break;
    case 2: {  // a number of 1 to 8 bytes
      const uint64_t number = InterestingNumber(random);
      const size_t at = place(), size = size_t{1} << random() % 4;
      for (size_t i = 0; i < size && at + i < input.size(); ++i)
        input[at + i] = static_cast<uint8_t>(number >> 8 * i);
      break;
    }
    case 3:  // cut short
      input.resize(place());
      break;
    case 4: {  // take a piece out
      const size_t at = place(), size = random() % 32;
      input.erase(input.begin() + static_cast<long>(at),
                  input.begin() + static_cast<long>(std::min(input.size(), at + size)));
      break;
    }
    case 5: {  // put a piece of itself or of another input in
      const Input& other = corpus[random() % corpus.size()];
      if (other.empty()) break;
      const size_t from = random() % other.size(),
                   size = std::min<size_t>(1 + random() % 64, other.size() - from);
      const Input piece(other.begin() + static_cast<long>(from),
                        other.begin() + static_cast<long>(from + size));
      input.insert(input.begin() + static_cast<long>(place()), piece.begin(), piece.end());
      break;
    }
    case 6: {  // repeat one byte: nesting, long numbers, long names
      const size_t at = place();
      if (!input.empty()) input.insert(input.begin() + static_cast<long>(at), 1 + random() % 300, input[at]);
      break;
    }
    default: {  // the head of one, the tail of another
      const Input& other = corpus[random() % corpus.size()];
      if (other.empty()) break;
      input.resize(place());
      input.insert(input.end(), other.begin() + static_cast<long>(random() % other.size()), other.end());
      break;
    }
  }
  if (input.size() > kMaxInput) input.resize(kMaxInput);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!ParseOptions(argc, argv, &options)) {
    std::fprintf(stderr, "usage: %s [--seconds S] [--runs N] [--seed N] FILE|FOLDER...\n", argv[0]);
    return 2;
  }
  std::vector<Input> corpus;
  for (const fs::path& path : CorpusFiles(options.paths)) {
    std::ifstream in(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    if (!Run(corpus.back())) {
      std::fprintf(stderr, "%s: the target reports a fault\n", path.c_str());
      return 1;
    }
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "error: no corpus at %s\n", options.paths[0].c_str());
    return 2;
  }

  std::mt19937 random(options.seed);
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  long run = 0;
  for (; run < options.runs && (options.seconds <= 0 || elapsed() < options.seconds); ++run) {
    Input input = corpus[random() % corpus.size()];
    for (unsigned i = 0, count = 1 + random() % 4; i < count; ++i) Mutate(input, corpus, random);
    if (Run(input)) continue;
    std::ofstream("crash_input", std::ios::binary)
        .write(reinterpret_cast<const char*>(input.data()), static_cast<std::streamsize>(input.size()));
    std::fprintf(stderr,
                 "mutation %ld of seed %u: the target reports a fault; the input is in ./crash_input\n", run,
                 options.seed);
    return 1;
  }
  std::printf("%zu corpus files and %ld mutations in %.1f s\n", corpus.size(), run, elapsed());
  return 0;
}
