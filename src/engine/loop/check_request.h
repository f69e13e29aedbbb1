// Validation of requests, before they are queued.
#pragma once

#include <string>

#include "celer/engine.h"

namespace celer {

// `scored`: a text that is only scored, and generates nothing. Reads nothing that changes while the engine
// runs, so any thread may call it.
Status CheckRequest(const Request& request, const Engine::Info& info, bool scored = false);
// The most blocks of the KV that the answer of a request can come to use at once; with beam search those of
// all its beams, which go on only together. They share the full blocks of the prompt. Behind those each may
// come to have blocks of its own, and the block in which the prompt ends is copied for each. A copy takes no
// more than that: the last beam to write to a shared block keeps it (block_manager.h), and beams that were
// preempted share the prompt again when they come back (scheduler.h).
// `max_tokens` is what the context has room for.
int64_t MostBlocks(const Request& request);
// A sentence with the numbers if the request is valid but can never fit into the KV; "": it can.
std::string NeverFits(const Request& request, const Engine::Info& info);
// Likewise of a model with recurrent layers, whose beams have a state each, in one of so many slots, and share nothing
// when they are recomputed.
std::string NeverFitsWithStates(const Request& request, const Engine::Info& info, int64_t slots);

}  // namespace celer
