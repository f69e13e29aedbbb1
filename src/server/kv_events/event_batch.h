// Events of the prefix cache in the bytes that vLLM's subscribers read: msgpack of [time, [event, ...], data-parallel rank].
#pragma once

#include <span>
#include <string>

#include "engine/kv/kv_chains.h"

namespace celer::server {

// Of an event: a map of names, as vLLM has it since 0.24, or an array of the values, as before.
enum class KvEventLayout { kMap, kArray };

// `seconds`: since 1970; `rank`: of the engine whose cache it is.
std::string EncodeKvEvents(double seconds, std::span<const KvEvent> events, KvEventLayout layout,
                           int64_t rank);

}  // namespace celer::server
