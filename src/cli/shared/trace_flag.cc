#include "cli/shared/trace_flag.h"

#include "engine/loop/engine_internals.h"
#include "limits/quantity.h"
#include "report/output.h"

namespace celer::cli {

void TraceFlag::AddTo(CLI::App& app) {
  app.add_option("--trace", path_,
                 "write what the engine does and when as a Chrome trace, for ui.perfetto.dev: steps, a CPU's "
                 "operators, queues, KV, requests");
}

Status TraceFlag::Open() {
  if (path_.empty()) return {};
  CELER_ASSIGN(trace_, StepTrace::Create(path_));
  return {};
}

void TraceFlag::Attach(Engine& engine) {
  if (trace_) EngineInternals::Trace(engine, *trace_);
}

Status TraceFlag::Close() {
  if (!trace_) return {};
  CELER_RETURN_IF_ERROR(trace_->Close());
  if (trace_->left_out() > 0)
    Say("wrote {} with {} events; {} more were left out, because it was full\n", path_,
        FormatCount(trace_->events()), FormatCount(trace_->left_out()));
  else
    Say("wrote {} with {} events\n", path_, FormatCount(trace_->events()));
  return {};
}

}  // namespace celer::cli
