// Every operator with attributes of any size, empty tensors and shapes that nearly fit: each network is
// planned, optimized and run, and gives results or one sentence, soon. The networks follow from the operator
// and a number; CELER_HOSTILE_NODES sets how many there are for each (a campaign takes 20,000), and
// CELER_HOSTILE_FROM the first. The same generator is behind the fuzz target operators_fuzz.cc.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/source_dir.h"
#include "graph/ir/operator_table.h"
#include "graph/load/fuzz_network.h"
#include "graph/load/fuzz_nodes.h"

namespace celer::graph {
namespace {

uint64_t NumberFrom(const char* variable, uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

std::string FullName(const Operator& op) {
  return (op.domain.empty() ? "" : std::string(op.domain) + ".") + std::string(op.name);
}

// A node that never ends is named before the program does.
class Watch {
 public:
  Watch() {
    Text()[0] = 0;
    struct sigaction action {};
    action.sa_handler = [](int) {
      (void)!write(STDERR_FILENO, Text(), std::strlen(Text()));
      _exit(1);
    };
    sigaction(SIGALRM, &action, nullptr);
  }
  ~Watch() { alarm(0); }
  void Begin(const std::string& name, uint64_t number) {
    std::snprintf(Text(), kText, "no end within 60 seconds: %s, number %llu\n", name.c_str(),
                  static_cast<unsigned long long>(number));
    alarm(60);
  }

 private:
  static constexpr size_t kText = 200;
  static char* Text() {
    static char text[kText];
    return text;
  }
};

// Restores what tests of large tensors need.
class SmallTensors {
 public:
  SmallTensors() : before_(MaxTensorBytes()) {}
  ~SmallTensors() { MaxTensorBytes() = before_; }

 private:
  uint64_t before_;
};

class HostileNodes : public testing::TestWithParam<const Operator*> {};

TEST_P(HostileNodes, EndSoonWithAResult) {
  const Operator& op = *GetParam();
  const std::string name = FullName(op);
  const SmallTensors small;
  Watch watch;
  const uint64_t from = NumberFrom("CELER_HOSTILE_FROM", 0), count = NumberFrom("CELER_HOSTILE_NODES", 60);
  for (uint64_t number = from; number < from + count; ++number) {
    watch.Begin(name, number);
    // Mixed, so that neighbours differ in every choice.
    std::mt19937_64 mix(number * 0x9E3779B97F4A7C15u + name.size());
    uint8_t first[32];
    for (uint8_t& byte : first) byte = static_cast<uint8_t>(mix());
    FuzzChoices choices(first);
    Network network = FuzzNodes(op, choices).Make();
    const std::string text = Print(network.graph);
    ASSERT_EQ(FuzzRun(std::move(network), [&](const TensorView& tensor) { FuzzFill(tensor, choices); }), 0)
        << name << ", number " << number << "\n"
        << text;
  }
}

TEST(HostileNodesCorpus, HasEveryOperator) {
  const std::filesystem::path folder = std::filesystem::path(kSourceDir) / "tests/fuzz/corpus/operators";
  for (const Operator* op : Operators())
    EXPECT_TRUE(std::filesystem::exists(folder / FullName(*op)))
        << FullName(*op) << " has no seed for the fuzz target; run tests/fuzz/make_operators.py";
}

INSTANTIATE_TEST_SUITE_P(All, HostileNodes, testing::ValuesIn(Operators().begin(), Operators().end()),
                         [](const auto& test) {
                           std::string name = FullName(*test.param) + std::to_string(test.param->since);
                           std::replace_if(
                               name.begin(), name.end(), [](unsigned char ch) { return !std::isalnum(ch); },
                               '_');
                           return name;
                         });

}  // namespace
}  // namespace celer::graph
