#include "limits/peer_speeds.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/result.h"
#include "limits/model_presets.h"

namespace celer {
namespace {

using Json = nlohmann::json;

Result<PeerRow> ParseRow(const Json& json, const std::map<std::string, std::string>& engines) {
  PeerRow row{.model = json.at("model"),
              .weights = json.at("weights"),
              .prefill = json.at("phase") == "prefill",
              .prompt = json.at("prompt"),
              .batch = json.at("batch"),
              .tokens_per_s = json.at("tokens_per_s")};
  if (!row.prefill && json.at("phase") != "decode")
    return Error::Invalid("phase ", json.at("phase").dump(), " is neither decode nor prefill");
  if (!FindPlainPreset(row.model)) return Error::Invalid("a row of ", row.model, ", which is no model here");
  if (row.prompt < 1 || row.batch < 1 || row.tokens_per_s.empty())
    return Error::Invalid("a row of ", row.model, " without a prompt, a batch or a speed");
  for (const auto& [engine, speed] : row.tokens_per_s)
    if (!engines.contains(engine) || !std::isfinite(speed) || speed <= 0)
      return Error::Invalid("a row of ", row.model, ": '", engine, "' is not an engine, or ", speed,
                            " not a speed");
  return row;
}

bool SameShape(const LlmShape& a, const LlmShape& b) {
  const auto figures = [](const LlmShape& s) {
    return std::array{s.layers,
                      s.hidden,
                      s.intermediate,
                      s.vocab,
                      s.heads,
                      s.kv_heads,
                      s.head_dim,
                      s.experts,
                      s.experts_per_token,
                      s.shared_intermediate};
  };
  return figures(a) == figures(b);
}

// The column in which a model stands whose weights are mostly held so; "" if there is none.
std::string_view PeerWeights(const std::map<std::string, int64_t>& bytes_by_format) {
  const auto most = std::max_element(bytes_by_format.begin(), bytes_by_format.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == bytes_by_format.end()) return "";
  const std::string_view name = most->first;
  if (name == "bf16" || name == "f16") return "bf16";
  if (name.starts_with("int8") || name.starts_with("fp8") || name == "q8_0") return "fp8";
  return "";
}

}  // namespace

PeerRow::Best PeerRow::best() const {
  const auto best = std::max_element(tokens_per_s.begin(), tokens_per_s.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return {best->first, best->second};
}

Result<PeerSpeeds> PeerSpeeds::Parse(std::string_view text) {
  try {
    const Json json = Json::parse(text);
    PeerSpeeds speeds{
        .source = json.at("source"), .gpu = json.at("gpu"), .engines = json.at("engines"), .rows = {}};
    for (const Json& row : json.at("rows")) {
      CELER_ASSIGN(PeerRow parsed, ParseRow(row, speeds.engines));
      speeds.rows.push_back(std::move(parsed));
    }
    return speeds;
  } catch (const Json::exception& problem) {
    return Error::Invalid("peer_speeds.json: ", problem.what());
  }
}

const PeerSpeeds& PeerSpeeds::BuiltIn() {
  static const PeerSpeeds speeds = [] {
    auto parsed = Parse(PeerFiles().front().body);
    CELER_CHECK(parsed);  // peer_speeds_test.cc
    return *parsed;
  }();
  return speeds;
}

std::vector<PeerRow> PeerSpeeds::Find(std::string_view device, const LlmShape& shape,
                                      const std::map<std::string, int64_t>& bytes_by_format) const {
  std::vector<PeerRow> found;
  if (!device.starts_with("cuda") || !device.ends_with(" (" + gpu + ")")) return found;
  const std::string_view weights = PeerWeights(bytes_by_format);
  for (const PeerRow& row : rows)
    if (row.weights == weights && SameShape(*FindPlainPreset(row.model), shape)) found.push_back(row);
  return found;
}

const PeerRow* FindWork(std::span<const PeerRow> rows, bool prefill, int64_t prompt, int64_t batch) {
  const auto row = std::find_if(rows.begin(), rows.end(), [&](const PeerRow& r) {
    return r.prefill == prefill && r.prompt == prompt && r.batch == batch;
  });
  return row == rows.end() ? nullptr : &*row;
}

}  // namespace celer
