#include "quantize/network/network_recipe.h"

#include <cmath>

#include "io/file/printable.h"
#include "io/json/json.h"

namespace celer::ptq {
namespace {

using nlohmann::json;

constexpr int64_t kVersion = 1;

Result<std::vector<double>> Numbers(const json& list, const std::string& where) {
  std::vector<double> out;
  if (!list.is_array()) return Error::Corrupt(where, ": expected a list of numbers");
  for (const json& number : list) {
    if (!number.is_number() || !std::isfinite(number.get<double>()))
      return Error::Corrupt(where, ": expected a list of numbers");
    out.push_back(number.get<double>());
  }
  return out;
}

Result<NetworkOptions> ReadOptions(const JsonFields& fields) {
  NetworkOptions out;
  CELER_ASSIGN(const std::string method, fields.GetString("method"));
  CELER_ASSIGN(out.range.method, ParseRangeMethod(method));
  CELER_ASSIGN(const std::string type, fields.GetString("activations"));
  CELER_ASSIGN(out.range.type, ParseActivationType(type));
  CELER_ASSIGN(out.range.percentile, fields.GetDouble("percentile", out.range.percentile));
  CELER_ASSIGN(out.range.power_of_two, fields.GetBool("power_of_two", false));
  CELER_ASSIGN(out.per_channel, fields.GetBool("per_channel", true));
  CELER_ASSIGN(out.equalize, fields.GetBool("equalize", false));
  CELER_ASSIGN(out.correct_bias, fields.GetBool("correct_bias", true));
  CELER_ASSIGN(out.align_add, fields.GetBool("align_add", false));
  CELER_ASSIGN(out.quantize_outputs, fields.GetBool("quantize_outputs", false));
  CELER_ASSIGN(out.dynamic, fields.GetBool("dynamic", false));
  return out;
}

}  // namespace

NetworkRecipe NetworkRecipe::Of(const NetworkQuantizer& quantizer, const FloatLayers& floats) {
  NetworkRecipe out;
  out.options = quantizer.options();
  out.floats = floats;
  for (const auto& [id, range] : quantizer.calibration().ranges)
    out.ranges[quantizer.network().graph.value(id).name] = range;
  if (out.options.correct_bias)
    for (const auto& [node, means] : quantizer.calibration().means)
      out.means[quantizer.facts().names[node]] = means;
  for (const auto& [node, peaks] : quantizer.calibration().peaks)
    out.peaks[quantizer.facts().names[node]] = peaks;
  return out;
}

Result<Calibration> NetworkRecipe::For(const NetworkQuantizer& quantizer) const {
  Calibration out;
  const graph::Graph& graph = quantizer.network().graph;
  std::map<std::string, ValueId> values;
  for (const ValueId id : Quantizable(graph, quantizer.facts())) values[graph.value(id).name] = id;
  for (const auto& [name, range] : ranges) {
    const auto at = values.find(name);
    if (at == values.end())
      return Error::Invalid("the recipe has a range for '", Printable(name),
                            "', which this network does not have; it was made for another one");
    out.ranges[at->second] = range;
  }
  std::map<std::string, size_t> nodes;
  for (size_t n = 0; n < graph.nodes.size(); ++n) nodes[quantizer.facts().names[n]] = n;
  const auto add = [&](const auto& from, auto* into) -> Status {
    for (const auto& [name, list] : from) {
      const auto at = nodes.find(name);
      if (at == nodes.end())
        return Error::Invalid("the recipe speaks of '", Printable(name),
                              "', which this network does not have; it was made for another one");
      (*into)[at->second] = list;
    }
    return {};
  };
  CELER_RETURN_IF_ERROR(add(means, &out.means));
  CELER_RETURN_IF_ERROR(add(peaks, &out.peaks));
  return out;
}

std::string NetworkRecipe::ToJson() const {
  json out;
  out["network_recipe"] = kVersion;
  out["method"] = Name(options.range.method);
  out["percentile"] = options.range.percentile;
  out["activations"] = Name(options.range.type);
  out["power_of_two"] = options.range.power_of_two;
  out["per_channel"] = options.per_channel;
  out["equalize"] = options.equalize;
  out["correct_bias"] = options.correct_bias;
  out["align_add"] = options.align_add;
  out["quantize_outputs"] = options.quantize_outputs;
  if (options.dynamic) out["dynamic"] = true;
  out["float"] = floats.empty() ? json::object() : json(floats);
  out["ranges"] = json::object();
  for (const auto& [name, range] : ranges) out["ranges"][name] = {range.low, range.high};
  out["means"] = means.empty() ? json::object() : json(means);
  out["peaks"] = peaks.empty() ? json::object() : json(peaks);
  return JsonText(out, 1) + "\n";
}

Result<NetworkRecipe> NetworkRecipe::Read(const std::filesystem::path& path) {
  const std::string where = path.string();
  CELER_ASSIGN(const json file, ReadJsonFile(path));
  CELER_ASSIGN(const JsonFields fields, JsonFields::Of(file, where));
  if (!fields.Has("network_recipe"))
    return Error::Invalid(where, ": is no recipe for a network; --recipe-out writes one");
  CELER_ASSIGN([[maybe_unused]] const int64_t version, fields.GetInt("network_recipe", 1, kVersion));
  NetworkRecipe out;
  auto options = ReadOptions(fields);
  if (!options) return options.error().WithContext(where);
  out.options = *options;
  CELER_ASSIGN(const JsonFields floats, fields.GetObject("float"));
  for (const auto& [name, why] : floats.json().items())
    out.floats[name] = why.is_string() ? why.get<std::string>() : std::string();
  CELER_ASSIGN(const JsonFields ranges, fields.GetObject("ranges"));
  for (const auto& [name, list] : ranges.json().items()) {
    CELER_ASSIGN(const auto ends, Numbers(list, where + ": 'ranges'"));
    if (ends.size() != 2 || ends[0] > 0 || ends[1] < 0)
      return Error::Corrupt(where, ": the range of '", Printable(name), "' is not [low, high] around zero");
    out.ranges[name] = {ends[0], ends[1]};
  }
  for (auto [key, into] : {std::pair("means", &out.means), std::pair("peaks", &out.peaks)}) {
    CELER_ASSIGN(const JsonFields lists, fields.GetObject(key));
    for (const auto& [name, list] : lists.json().items()) {
      CELER_ASSIGN(const auto numbers, Numbers(list, where + ": '" + key + "'"));
      for (const double number : numbers) (*into)[name].push_back(static_cast<float>(number));
    }
  }
  return out;
}

}  // namespace celer::ptq
