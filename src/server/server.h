// `celer serve` as a function: listens, loads the model, answers until a signal comes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/text/text_model.h"
#include "server/http/http_server.h"
#include "server/kv_events/kv_publisher.h"
#include "server/kv_transfer/kv_transfer.h"
#include "server/service/service.h"

namespace celer::server {

struct ServerOptions {
  TextModelOptions model;
  std::vector<std::string> names;    // the first is the model's name, the others are aliases
  bool model_defaults = false;       // as in ServedModel
  Pooling pooling = Pooling::kNone;  // of embeddings; kNone: as the model's folder has it, else the mean
  HttpOptions http;
  ServiceOptions service;
  int replicas = 1;               // engines (engine/loop/replicas.h)
  KvEventOptions kv_events;       // with no address: none
  KvTransferOptions kv_transfer;  // likewise
  std::function<void(const std::string& url)> on_listening;
  std::function<void(const KvPublisher& publisher)> on_publishing;  // for each engine
  std::function<void(const KvTransfer& transfer)> on_transferring;
  std::function<void(const Engine::Info& info)> on_ready;  // of the first engine
};

// Returns after a graceful shutdown on SIGTERM or SIGINT: 0, or 1 after a fault of the device. An error if it
// could not listen or load.
Result<int> Serve(ServerOptions options);

}  // namespace celer::server
