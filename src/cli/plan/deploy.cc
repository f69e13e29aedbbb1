// What it takes to run the machines that were chosen.
#include <fmt/format.h>

#include <algorithm>

#include "cli/plan/report.h"
#include "limits/quantity.h"
#include "models/config/presets.h"

namespace celer::cli {

std::vector<std::string> ServeArguments(const PlanQuery& query, const PlanRow& row) {
  const PlanChoice& choice = row.choice;
  const PlanMachine& machine = query.machines[choice.machine];
  std::vector<std::string> args = {"serve", query.model};
  const auto add = [&](const char* flag, const std::string& value) {
    args.push_back(flag);
    args.push_back(value);
  };
  add("--device", machine.cuda ? "cuda" : "cpu");
  if (choice.weights.weights.format != WeightFormat::kAsStored)
    add("--weights", choice.weights.weights.ToString());
  if (choice.weights.activations != Activations::k16Bit)
    add("--activations", Name(choice.weights.activations));
  add("--kv", Name(choice.kv));
  add("--chunk", std::to_string(choice.chunk));
  add("--mixed-chunk", std::to_string(choice.chunk));
  add("--context", std::to_string(query.load.longest));
  if (query.draft.depth > 0) {
    add("--speculate", "lookup");
    add("--draft-depth", std::to_string(std::min<int64_t>(query.draft.depth, 15)));
  }
  if (query.target.ttft_s > 0) add("--max-ttft", FormatNumber(query.target.ttft_s));
  return args;
}

std::string ServeCommandLine(const PlanQuery& query, const PlanRow& row) {
  std::string line = "celer";
  for (const std::string& arg : ServeArguments(query, row)) {
    const bool plain = std::all_of(arg.begin(), arg.end(), [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) ||
             std::string_view("-_./:+=,").find(c) != std::string_view::npos;
    });
    std::string quoted = arg;
    if (!plain || arg.empty()) {
      quoted = "'";
      for (const char c : arg) c == '\'' ? quoted += "'\\''" : quoted += c;
      quoted += "'";
    }
    line += " " + quoted;
  }
  return line;
}

std::string KubernetesManifest(const PlanQuery& query, const PlanRow& row) {
  const PlanMachine& machine = query.machines[row.choice.machine];
  std::string args;
  for (const std::string& arg : ServeArguments(query, row)) {
    const bool model = arg == query.model;
    args += fmt::format("            - {}\n",
                        nlohmann::json(model ? "/models/model" : arg)
                            .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  args +=
      "            - \"--host=0.0.0.0\"\n            - \"--port=8000\"\n            - \"--drain-grace=15\"\n";
  const std::string resources =
      machine.cuda ? fmt::format("            limits: {{nvidia.com/gpu: {}}}\n", row.choice.devices)
                   : std::string("            requests: {cpu: \"4\"}\n");
  return fmt::format(
      R"(# {} replicas on {}: celer plan. Change the image and the claim; deploy/kubernetes/ has the rest.
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: celer
  labels: {{app: celer}}
spec:
  serviceName: celer
  replicas: {}
  podManagementPolicy: Parallel
  selector:
    matchLabels: {{app: celer}}
  template:
    metadata:
      labels: {{app: celer}}
    spec:
      terminationGracePeriodSeconds: 75
      containers:
        - name: celer
          image: celer:latest
          args:
{}          ports:
            - {{name: http, containerPort: 8000}}
          startupProbe:
            httpGet: {{path: /health, port: http}}
            periodSeconds: 2
            failureThreshold: 300
          readinessProbe:
            httpGet: {{path: /health, port: http}}
            periodSeconds: 2
            failureThreshold: 1
          resources:
{}          volumeMounts:
            - {{name: models, mountPath: /models, readOnly: true}}
      volumes:
        - name: models
          persistentVolumeClaim: {{claimName: celer-models, readOnly: true}}
)",
      row.replicas, row.machine, row.replicas, args, resources);
}

}  // namespace celer::cli
