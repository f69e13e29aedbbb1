// What an EngineThread (celer/engine_thread.h) drives: an Engine, or in tests a fake.
#pragma once

#include "celer/engine_thread.h"

namespace celer {

// All but info(), Check() and CachedTokens() are called on one thread only.
class Stepper {
 public:
  virtual ~Stepper() = default;
  virtual const Engine::Info& info() const = 0;
  virtual Status Check(const Request& request) const = 0;  // on any thread
  virtual Result<int64_t> Submit(Request request) = 0;
  virtual void Cancel(int64_t request) = 0;
  virtual bool HasWork() const = 0;
  virtual std::vector<TokenEvent> Step() = 0;
  virtual std::optional<Error> fault() const = 0;
  virtual EngineStats stats() const { return {}; }
  virtual int64_t CachedTokens(const Request&) const { return 0; }  // on any thread
  virtual Engine* engine() = 0;                                     // null in tests
};

// For EngineThread's constructor.
std::shared_ptr<EngineThread::Impl> StartEngineThread(std::unique_ptr<Stepper> stepper);

}  // namespace celer
