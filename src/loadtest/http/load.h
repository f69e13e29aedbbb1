// Plays a trace against a server of OpenAI's API and keeps what each request saw.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/embedded_file.h"
#include "loadtest/http/client.h"
#include "loadtest/replay.h"

namespace celer::cli {

std::span<const EmbeddedFile> LoadWordFiles();  // bench_words.txt, which prompts are made of

enum class ServerApi { kCompletions, kChat };

// Makes a request of a line of a trace.
struct RequestMaker {
  ServerApi api = ServerApi::kCompletions;
  std::string model = {};
  int64_t token_ids = 0;       // prompts are ids below this; 0: words
  double words_per_token = 1;  // of this server's tokenizer
  double tokens_before = 0;    // that the server adds to the words: the chat template, the first token
  nlohmann::json more = {};    // merged into the body; null removes a field

  // "/chat/completions"
  const char* path() const { return api == ServerApi::kChat ? "/chat/completions" : "/completions"; }
  // The trace with prompts and blocks counted in words, if prompts are words. Body() takes such a one.
  Trace InWords(Trace trace) const;
  nlohmann::json Body(const Trace& trace, size_t i, bool stream) const;
};

// Asks the server about its model and, for prompts of words, how many tokens they are. Its errors are those
// of a first request: a wrong key or model is said here, not a hundred times.
Status Prepare(const HttpClientOptions& server, RequestMaker* maker);

struct LoadError {
  int64_t count = 0;
  std::string first;  // message
};

struct ServerRun {
  Replay replay;                            // without steps
  std::vector<double> token_s;              // when each piece of an answer came
  std::map<std::string, LoadError> errors;  // by kind: "HTTP 429", "connect", "timeout"
  int64_t pieces = 0, reported = 0;         // of answers; answers whose tokens the server counted
  int64_t most_open = 0;                    // requests at once
  double late_s = 0;  // the most that a request was sent after its time, if it had to wait for nobody
  double cpu_s = 0;   // of this process
};

struct LoadShape {
  int64_t concurrency = 0;  // at most so many at once; 0: as many as have arrived
  bool closed = false;      // the next one begins when one ends, whatever the trace's times are
};

Result<ServerRun> PlayAgainstServer(const HttpClientOptions& server, const Trace& trace,
                                    const LoadShape& shape, const RequestMaker& maker,
                                    const std::function<void(int64_t)>& progress);

}  // namespace celer::cli
