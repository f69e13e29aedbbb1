// An interrupted answer that goes on: a token is a function of the model, the prompt, the sampling parameters, the seed and
// the tokens before it, so any server that is given the same continues with the same text.
#pragma once

#include "server/service/generation.h"

namespace celer::server {

// Before the query is prepared: whether the parameters go together. The seed of `resume` becomes the query's.
Refusal CheckResume(Query* query);
// After it, on a worker thread: checks the tokens that the client has, puts them into the request and its mask behind them,
// and replays them through text, stop strings and the answer's syntax.
Refusal ReplayAnswer(Job* job);

}  // namespace celer::server
