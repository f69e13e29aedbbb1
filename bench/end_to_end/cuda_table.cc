#include "cuda_table.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "limits/measured_machine.h"
#include "limits/peer_speeds.h"
#include "limits/quantity.h"
#include "limits/roofline.h"

namespace {

void AddPeer(const celer::Engine& engine, const BenchWork& work, bool prefill, Beside* beside) {
  const celer::Engine::Info& info = engine.info();
  const celer::PeerSpeeds& peers = celer::PeerSpeeds::BuiltIn();
  const auto rows = peers.Find(info.device, info.shape, info.bytes_by_format);
  const celer::PeerRow* row = celer::FindWork(rows, prefill, work.prompt, work.batch);
  if (row == nullptr) return;
  const celer::PeerRow::Best best = row->best();
  beside->peer = best.tokens_per_s;
  beside->engine = peers.engines.at(best.engine);
}

std::string Title(const BenchWork& work, bool prefill) {
  std::string title = fmt::format("{} {}", work.model, work.weights);
  if (work.activations != celer::Activations::k16Bit)
    title += fmt::format(", activations {}", Name(work.activations));
  if (work.deterministic) title += ", deterministic";
  if (work.no_rows) title += ", weights once";
  if (prefill) return title + ", prefill " + celer::FormatCount(work.prompt * work.batch);
  return title + fmt::format(", {} sequence{} at {}", celer::FormatCount(work.batch),
                             work.batch == 1 ? "" : "s", celer::FormatCount(work.prompt));
}

}  // namespace

Beside BesideDecode(const celer::Engine& engine, const BenchWork& work, double speed, double bytes_per_s) {
  Beside beside{.speed = speed};
  // The step in the middle of those that are timed.
  const double bytes =
      Sum(engine.Work({.sequences = work.batch, .position = work.prompt + (work.tokens - 1) / 2})).bytes;
  beside.limit = static_cast<double>(work.batch) * bytes_per_s / bytes;
  AddPeer(engine, work, /*prefill=*/false, &beside);
  return beside;
}

Beside BesidePrefill(const celer::Engine& engine, const BenchWork& work, double speed) {
  Beside beside{.speed = speed};
  AddPeer(engine, work, /*prefill=*/true, &beside);
  const std::string& device = engine.info().device;  // "cuda:0 (NVIDIA H200)"
  const auto parsed = celer::Device::Parse(device.substr(0, device.find(' ')));
  if (!parsed) return beside;
  const auto machine = celer::LoadOrMeasureThisMachine(/*allow_measure=*/false, *parsed);
  if (!machine) return beside;
  double seconds = 0;
  for (const celer::OperatorWork& op : engine.Work({.sequences = work.batch, .tokens = work.prompt})) {
    const char* type = work.activations != celer::Activations::k16Bit && op.name != "attention"
                           ? Name(work.activations)
                           : "bf16";
    const auto peak = machine->flops.find(type);
    if (peak == machine->flops.end()) return beside;
    for (const auto& [stored, flops] : op.flops) seconds += flops / peak->second;
  }
  if (seconds > 0) beside.limit = static_cast<double>(work.batch * work.prompt) / seconds;
  return beside;
}

celer::Status AppendToTable(const std::string& path, const BenchWork& work, bool prefill, const Beside& row) {
  const bool begun = std::filesystem::exists(path);
  std::ofstream file(path, std::ios::app);
  if (!begun)
    file << "| work | celer, tok/s | limit | ratio | best peer | ratio to it |\n|---|---|---|---|---|---|\n";
  const auto or_dash = [](bool there, const std::string& text) { return there ? text : std::string("–"); };
  const auto whole = [](double value) { return celer::FormatCount(static_cast<int64_t>(value + 0.5)); };
  file << fmt::format("| {} | {} | {} | {} | {} | {} |\n", Title(work, prefill), whole(row.speed),
                      or_dash(row.limit > 0, whole(row.limit)),
                      or_dash(row.limit > 0, fmt::format("{:.2f}", row.speed / row.limit)),
                      or_dash(row.peer > 0, whole(row.peer) + " (" + row.engine + ")"),
                      or_dash(row.peer > 0, fmt::format("{:.2f}", row.speed / row.peer)));
  file.flush();
  if (!file) return celer::Error::Io(path, ": cannot be written: ", std::strerror(errno));
  return {};
}
