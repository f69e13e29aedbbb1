// `celer bench --sample`: what choosing the next token costs on the CPU, beside the time it takes to read the
// logits once.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "celer/engine.h"
#include "report/table.h"

namespace celer::cli {

struct SampleResult {
  int64_t vocab = 0;
  std::string logits;           // how they are spread: "peaked", "flat"
  std::string setting;          // "top-p 0.95"
  std::vector<double> seconds;  // of one token: the mean of each repetition
  double read_seconds = 0;      // to read the same logits once: the limit

  double median() const;
  double ratio() const { return read_seconds / median(); }
};

struct SampleReport {
  int64_t repeat = 0;
  std::vector<SampleResult> results;
};

SampleReport MeasureSampling(int64_t repeat);

std::string SampleText(const SampleReport& report);
nlohmann::ordered_json SampleJson(const SampleReport& report);

}  // namespace celer::cli
