#include "cli/bench_server/bench_server.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include "io/json/json.h"
#include "limits/quantity.h"

namespace celer::cli {
namespace {

constexpr std::string_view kServerOnly[] = {"--server",    "--concurrency", "--api",
                                            "--token-ids", "--api-key",     "--body",
                                            "--insecure",  "--timeout",     "--save-requests"};
constexpr std::string_view kServerFlagNames[] = {
    "MODEL",         "--server",        "--concurrency",   "--api",           "--token-ids",
    "--api-key",     "--body",          "--insecure",      "--timeout",       "--save-requests",
    "--serve-trace", "--serve-poisson", "--prompt-tokens", "--output-tokens", "--serve-seed",
    "--requests",    "--rate-scale",    "--length-scale",  "--target-ttft",   "--target-itl",
    "--json",        "--html"};

constexpr int64_t kMaxConcurrency = 60'000;  // connections from one address to another
constexpr int64_t kMaxVocabulary = int64_t{1} << 24;

Result<LoadShape> ShapeOf(const ServerFlags& flags, const ServeFlags& load) {
  LoadShape shape;
  if (!flags.concurrency.empty()) {
    CELER_ASSIGN(shape.concurrency, ParseCount(flags.concurrency, kMaxConcurrency, "--concurrency"));
  }
  shape.closed = !load.wanted();
  if (shape.closed && shape.concurrency == 0)
    return Error::Invalid(
        "--server needs a load: --concurrency N, --serve-poisson RATE or --serve-trace FILE");
  return shape;
}

Result<RequestMaker> MakerOf(const ServerFlags& flags, const std::string& model) {
  RequestMaker maker{.api = flags.api == "chat" ? ServerApi::kChat : ServerApi::kCompletions, .model = model};
  if (!flags.token_ids.empty()) {
    CELER_ASSIGN(maker.token_ids, ParseCount(flags.token_ids, kMaxVocabulary, "--token-ids"));
    if (maker.api == ServerApi::kChat)
      return Error::Invalid("--token-ids: a chat has messages, not ids; leave it out, or --api chat");
  }
  if (!flags.body.empty()) {
    CELER_ASSIGN(maker.more, ParseJson(flags.body, "--body"));
    if (!maker.more.is_object()) return Error::Invalid("--body ", flags.body, ": expected a JSON object");
  }
  return maker;
}

Result<HttpClientOptions> ClientOf(const ServerFlags& flags) {
  HttpClientOptions client{.api_key = flags.api_key, .insecure = flags.insecure};
  CELER_ASSIGN(client.url, ServerUrl::Parse(flags.url));
  if (flags.insecure && !client.url.tls)
    return Error::Invalid("--insecure has no effect without https://; leave it out");
  if (flags.api_key.find_first_of("\r\n") != flags.api_key.npos)
    return Error::Invalid("--api-key: has a line break");
  if (!flags.timeout.empty()) {
    CELER_ASSIGN(client.timeout_s, ParsePositive(flags.timeout, 1e6, "--timeout"));
  }
  return client;
}

// Lines of OpenAI's batch format, so that other tools can do exactly the same work.
Status SaveRequests(const ServerReport& report, const std::string& path) {
  const Trace prompts = report.maker.InWords(report.trace);
  std::string lines;
  for (size_t i = 0; i < prompts.requests.size(); ++i) {
    nlohmann::ordered_json line = {{"custom_id", fmt::format("request-{}", i)},
                                   {"method", "POST"},
                                   {"url", std::string("/v1") + report.maker.path()}};
    line["body"] = report.maker.Body(prompts, i, /*stream=*/false);
    lines += line.dump() + "\n";
  }
  return WriteFile(path, lines);
}

// Every stream is a descriptor, and the usual limit is a thousand.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

std::span<const std::string_view> ServerFlagNames() {
  return kServerFlagNames;
}
std::span<const std::string_view> ServerOnlyFlags() {
  return kServerOnly;
}

void AddServerFlags(CLI::App& app, ServerFlags* flags) {
  const auto text = [&](const char* name, std::string* into, const char* help) {
    return app.add_option(name, *into, help)->default_str("")->group("Load on a server");
  };
  text(
      "--server", &flags->url,
      "instead of an engine here: a server of OpenAI's API, as http://127.0.0.1:8000; MODEL is then its name "
      "for the model (default: the first it has)");
  text("--concurrency", &flags->concurrency,
       "requests at once: the next begins when one ends, --requests in all; with a trace or --serve-poisson: "
       "at "
       "most so many");
  app.add_option("--api", flags->api, "completions or chat")
      ->check(CLI::IsMember({"completions", "chat"}))
      ->group("Load on a server");
  text("--token-ids", &flags->token_ids,
       "prompts of token ids below this instead of words (completions alone)");
  text("--body", &flags->body,
       "a JSON object whose fields every request gets; null removes one: '{\"ignore_eos\": null}'");
  text("--api-key", &flags->api_key, "sent as Authorization: Bearer");
  app.add_flag("--insecure", flags->insecure, "take any certificate")->group("Load on a server");
  text("--timeout", &flags->timeout, "seconds that a request may take (default 600)");
  text("--save-requests", &flags->save, "write the requests as celer batch takes them");
}

Result<ServerReport> RunServer(const ServerFlags& flags, const ServeFlags& load, const std::string& model,
                               const std::function<void(const std::string&)>& progress) {
  ServerReport report;
  CELER_ASSIGN(const HttpClientOptions client, ClientOf(flags));
  CELER_ASSIGN(report.shape, ShapeOf(flags, load));
  CELER_ASSIGN(report.maker, MakerOf(flags, model));
  CELER_ASSIGN(report.target, TargetOf(load));
  CELER_ASSIGN(report.trace, TraceOf(load, &report.scale));
  RaiseDescriptorLimit();
  progress("asking the server");
  CELER_RETURN_IF_ERROR(Prepare(client, &report.maker));
  report.url = client.url.Origin() + client.url.base;
  report.model = report.maker.model;
  if (!flags.save.empty()) CELER_RETURN_IF_ERROR(SaveRequests(report, flags.save));
  const int64_t all = std::ssize(report.trace.requests);
  auto shown = std::chrono::steady_clock::time_point();
  const auto show = [&](int64_t ended) {
    constexpr auto kOften = std::chrono::milliseconds(200);
    const auto now = std::chrono::steady_clock::now();
    if (now - shown < kOften) return;
    shown = now;
    progress(fmt::format("{} of {} requests done", FormatCount(ended), FormatCount(all)));
  };
  CELER_ASSIGN(report.run, PlayAgainstServer(client, report.trace, report.shape, report.maker, show));
  report.metrics = Summarize(report.run.replay, report.target);
  progress("");
  return report;
}

}  // namespace celer::cli
