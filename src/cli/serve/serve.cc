// celer serve MODEL: an OpenAI-compatible server.
#include "server/server.h"

#include <filesystem>
#include <limits>

#include "base/log.h"
#include "cli/shared/command.h"
#include "cli/shared/commands.h"
#include "cli/shared/engine_flags.h"
#include "cli/text/generate_flags.h"
#include "report/output.h"

namespace celer::cli {
namespace {

constexpr int64_t kMillion = 1'000'000;

struct ServeCommandFlags {
  ModelFlags model;
  server::ServerOptions server;
  std::string key_file, key_limits;
  int64_t port = 8000;
  double header_timeout = 10, body_timeout = 60, idle_timeout = 75, write_timeout = 30, drain_grace = 0,
         drain_limit = 45, ping = 15, transfer_hold = 60, transfer_timeout = 10;
  std::string log_format = "text", on_fault = "exit";
  bool quiet = false;
};

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

void AddLoraFlags(CLI::App& app, ServeCommandFlags& flags) {
  app.get_option("--lora")->description(
      "NAME=PATH[:SCALE]: a LoRA adapter, a PEFT folder or a GGUF file, that requests get which name it as "
      "their "
      "model; may be repeated");
  app.add_option("--max-loras", flags.model.options.engine.lora.max_adapters,
                 "adapters in memory at once; 0: any number")
      ->check(Between(0, 65536));
  app.add_flag(
      "--allow-runtime-lora", flags.server.service.allow_runtime_lora,
      "clients may load adapters from paths of this machine, unload them, and set the scales of requests "
      "that name none");
}

void AddAccessFlags(CLI::App& app, ServeCommandFlags& flags) {
  server::HttpOptions& http = flags.server.http;
  server::ServiceOptions& service = flags.server.service;
  app.add_option("--api-key-file", flags.key_file,
                 "file with one API key per line; clients must send one of them");
  app.add_option(
         "--key-limits", flags.key_limits,
         "file with lines of 'KEY name=NAME rpm=60 tpm=100000 weight=2': requests and tokens per minute of a "
         "key, others get 429, and its share while requests wait; '*': each other key")
      ->needs("--api-key-file");
  app.add_option("--tls-cert", http.tls_cert, "certificate chain in PEM form");
  app.add_option("--tls-key", http.tls_key, "its private key");
  app.add_option(
         "--cors-origin,--cors", service.cors_origins,
         "CORS: origin of a web page that may use this server, such as https://chat.example.com; '*': all")
      ->allow_extra_args(false);
  app.add_option(
         "--allowed-hosts", service.allowed_hosts,
         "Host headers that a server without keys accepts besides localhost and --host, such as a proxy's: "
         "a,b or '*' for any (default on other than loopback addresses)")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_flag("--enable-sleep-mode", service.sleep_mode,
               "clients may put the server to sleep, which gives its memory back, and wake it up");
}

void AddKvEventFlags(CLI::App& app, server::KvEventOptions& options) {
  app.add_option("--kv-events", options.publish,
                 "publish over ZeroMQ what the prefix cache stores and removes, as vLLM does: tcp://*:5557; "
                 "who can connect can read prompts")
      ->check([](const std::string& text) {
        return text.empty() ? std::string("expected an address such as tcp://*:5557") : std::string();
      });
  app.add_option("--kv-events-replay", options.replay,
                 "socket for subscribers that missed messages: tcp://*:5558")
      ->needs("--kv-events");
  app.add_option("--kv-events-topic", options.topic, "of each message")->needs("--kv-events");
  app.add_option_function<std::string>(
         "--kv-events-layout",
         [&options](const std::string& text) {
           options.layout = text == "map" ? server::KvEventLayout::kMap : server::KvEventLayout::kArray;
         },
         "of an event: map, as vLLM since 0.24, or array, as before (default map)")
      ->check(CLI::IsMember({"map", "array"}))
      ->needs("--kv-events");
  app.add_option("--kv-hash-seed", options.hash_seed,
                 "of the blocks' hashes, vLLM's PYTHONHASHSEED; equal on all replicas")
      ->needs("--kv-events");
}

void AddKvTransferFlags(CLI::App& app, ServeCommandFlags& flags) {
  server::KvTransferOptions& options = flags.server.kv_transfer;
  app.add_option(
         "--kv-transfer", options.address,
         "HOST:PORT: disaggregated prefill with kv_transfer_params, as vLLM; other servers fetch keys and "
         "values of prompts there, by this address, and this one from --kv-transfer-peers")
      ->check([](const std::string& text) {
        const auto parsed = server::HostPort::Parse(text);
        return parsed ? std::string() : parsed.error().message();
      });
  app.add_option(
         "--kv-transfer-peers", options.peers,
         "servers to fetch from: addresses or names, each with a port or for all ports, and networks: "
         "10.0.0.0/8,prefill-0:5600 (default none)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->needs("--kv-transfer");
  const CLI::Range seconds(0.01, 86400.0);
  app.add_option("--kv-transfer-hold", flags.transfer_hold,
                 "seconds that a prompt's blocks are kept for another server to fetch (default 60)")
      ->check(seconds)
      ->needs("--kv-transfer");
  app.add_option("--kv-transfer-timeout", flags.transfer_timeout,
                 "seconds of a fetch; what has not come by then is computed (default 10)")
      ->check(seconds)
      ->needs("--kv-transfer");
}

Result<int> Run(ServeCommandFlags& flags) {
  server::ServerOptions& options = flags.server;
  if (flags.model.verbose > 0)
    log::SetLevel(flags.model.verbose > 1 ? log::Level::kDebug : log::Level::kInfo);
  EngineOptions& engine = flags.model.options.engine;
  engine.sequences = 0;
  engine.lora.standing = false;
  engine.lora.grows = options.service.allow_runtime_lora;
  engine.parallel.rejoin = flags.on_fault == "reload";
  CELER_RETURN_IF_ERROR(ResolveModels(flags.model.model, &engine));
  options.model = flags.model.options;
  options.service.model_path = flags.model.model;
  if (options.names.empty()) {
    // A folder's or a file's name; a pulled model is called as it was pulled.
    const std::filesystem::path given = flags.model.model;
    options.names.push_back(given.extension() == ".gguf" || given.extension() == ".bin"
                                ? given.stem().string()
                            : given.has_filename() ? given.filename().string()
                                                   : given.parent_path().filename().string());
  }
  options.http.port = static_cast<uint16_t>(flags.port);
  options.http.header_timeout = Milliseconds(flags.header_timeout);
  options.http.body_timeout = Milliseconds(flags.body_timeout);
  options.http.idle_timeout = Milliseconds(flags.idle_timeout);
  options.http.write_timeout = Milliseconds(flags.write_timeout);
  options.kv_transfer.hold = Milliseconds(flags.transfer_hold);
  options.kv_transfer.timeout = Milliseconds(flags.transfer_timeout);
  options.service.drain_grace = Milliseconds(flags.drain_grace);
  options.service.drain_limit = Milliseconds(flags.drain_limit);
  options.service.ping_interval = Milliseconds(flags.ping);
  options.service.log_json = flags.log_format == "json";
  options.service.log_requests = !flags.quiet;
  options.service.log_probes = flags.model.verbose > 0;
  options.service.reload_on_fault = flags.on_fault == "reload";
  if (!flags.key_file.empty()) {
    CELER_ASSIGN(options.service.keys, server::ApiKeys::Load(flags.key_file));
  }
  if (!flags.key_limits.empty()) {
    CELER_ASSIGN(options.service.key_limits, server::KeyLimits::Load(flags.key_limits, options.service.keys));
  }
  options.on_listening = [&](const std::string& url) {
    Say("listening on {}; loading {}\n", url, flags.model.model);
    const std::string& host = options.http.host;
    if (!host.starts_with("127.") && host != "::1" && host != "localhost" && flags.key_file.empty())
      log::Warning("anyone who can reach {} can use this server; set --api-key-file", host);
  };
  options.on_publishing = [](const server::KvPublisher& publisher) {
    Say("KV events on {}{}\n", publisher.publish_address(),
        publisher.replay_address().empty() ? "" : ", replay on " + publisher.replay_address());
  };
  options.on_transferring = [](const server::KvTransfer& transfer) {
    Say("KV transfer on {}:{}\n", transfer.address().host, transfer.address().port);
  };
  options.on_ready = [&](const Engine::Info& info) {
    Say("ready: {} on {}, {}sequences of up to {} tokens, KV for {} tokens{}\n", options.names[0],
        info.device, options.replicas > 1 ? std::to_string(options.replicas) + " engines, " : "",
        info.context, info.kv_tokens, options.replicas > 1 ? " each" : "");
  };
  return server::Serve(options);
}

}  // namespace

int ServeCommand(const std::vector<std::string>& args) {
  ServeCommandFlags flags;
  server::HttpOptions& http = flags.server.http;
  server::ServiceOptions& service = flags.server.service;
  CommandLine app("serve", "answer over HTTP, as OpenAI's API does", "celer serve smollm2 --port 8000");
  flags.model.AddTo(app);
  flags.model.AddChatTo(app);
  const CLI::Range seconds(0.001, 86400.0);
  app.add_option("--host", http.host, "address to listen on; 0.0.0.0: all of this machine's");
  app.add_option("--port", flags.port, "0: any that is free")->check(Between(0, 65535));
  app.add_option("--served-model-name", flags.server.names,
                 "what clients call the model; more than one can be given");
  app.add_option(
         "--data-parallel-size", flags.server.replicas,
         "engines in this process, each with a KV and a batch of its own: one on each CUDA device from "
         "--device on, or on the CPU, where they share the weights and divide --threads")
      ->check(Between(1, 256));
  AddLoraFlags(app, flags);
  AddKvEventFlags(app, flags.server.kv_events);
  AddKvTransferFlags(app, flags);
  app.add_flag("--model-defaults", flags.server.model_defaults,
               "sampling defaults from the model's generation_config.json instead of OpenAI's");
  app.add_option_function<std::string>(
         "--pooling",
         [&flags](const std::string& text) {
           flags.server.pooling = text == "mean" ? Pooling::kMean : Pooling::kLast;
         },
         "of /v1/embeddings: mean of all tokens, or the last one's (default: what the model's folder says, "
         "else mean)")
      ->check(CLI::IsMember({"mean", "last"}));
  app.add_flag(
      "--lenient", service.lenient,
      "ignore parameters that are not supported, and list them in a header, instead of rejecting them");
  AddAccessFlags(app, flags);
  app.add_option("--metrics-prefix", service.metrics_prefix,
                 "of /metrics; 'vllm:' suits existing dashboards");
  app.add_option("--max-queue", service.max_queue,
                 "requests that may wait for their first token; others get 429")
      ->check(Between(1, kMillion));
  app.add_option("--max-queue-tokens", service.max_queue_tokens,
                 "prompt tokens that may wait (0: eight times what the KV holds)")
      ->check(Between(0, std::numeric_limits<int64_t>::max()));
  app.add_option("--max-ttft", service.max_ttft, "seconds to the first token, as predicted; 0: any")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--max-seconds", service.max_seconds, "of one request; 0: any")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--max-connections", http.max_connections, "open at once")->check(Between(1, kMillion));
  app.add_option("--max-body", http.max_body_bytes, "bytes of a request")
      ->check(Between(1024, int64_t{1} << 30));
  app.add_option("--max-body-memory", http.max_body_memory,
                 "bytes of all requests in flight, at least --max-body; others get 429")
      ->check(Between(1024, int64_t{1} << 40));
  app.add_option("--max-jobs", service.max_jobs,
                 "requests that are parsed, rendered and tokenized at once; others get 429")
      ->check(Between(1, kMillion));
  app.add_option("--max-header", http.max_header_bytes, "bytes of a request's headers")
      ->check(Between(1024, 1 << 20));
  app.add_option("--max-unsent", http.max_unsent_bytes,
                 "unsent bytes of a stream before a slow client is disconnected")
      ->check(Between(1024, int64_t{1} << 30));
  app.add_option("--header-timeout", flags.header_timeout, "seconds to receive a request's headers")
      ->check(seconds);
  app.add_option("--body-timeout", flags.body_timeout, "seconds to receive its body")->check(seconds);
  app.add_option("--idle-timeout", flags.idle_timeout, "seconds that a keep-alive connection may be idle")
      ->check(seconds);
  app.add_option("--write-timeout", flags.write_timeout,
                 "seconds without progress of a write before a client is disconnected")
      ->check(seconds);
  app.add_option("--ping", flags.ping, "seconds between keep-alive comments on an idle stream")
      ->check(seconds);
  app.add_option("--drain-grace", flags.drain_grace,
                 "seconds after SIGTERM in which requests are still accepted while /health says 503")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--drain-limit", flags.drain_limit, "seconds that requests in flight have after that")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--on-fault", flags.on_fault, "of the device: exit with status 1, or reload the model")
      ->check(CLI::IsMember({"exit", "reload"}));
  app.add_option("--workers", service.workers, "threads for JSON, templates and tokens")
      ->check(Between(1, 64));
  app.add_option("--max-responses", service.max_responses, "answers kept for previous_response_id");
  app.add_option("--log-format", flags.log_format, "text or json")->check(CLI::IsMember({"text", "json"}));
  app.add_flag("-q,--quiet", flags.quiet, "no line per request");
  if (const auto stop = Parse(app, args)) return *stop;
  if (http.tls_cert.empty() != http.tls_key.empty())
    return Fail(Error::Invalid("TLS needs both --tls-cert and --tls-key"));
  for (const std::string& name : service.allowed_hosts)
    if (const std::string wrong = server::WrongHostName(name); !wrong.empty())
      return Fail(Error::Invalid(wrong));
  for (const std::string& origin : service.cors_origins)
    if (const std::string wrong = server::WrongOrigin(origin); !wrong.empty())
      return Fail(Error::Invalid(wrong));
  const auto code = Run(flags);
  return code ? *code : Fail(code.error());
}

}  // namespace celer::cli
