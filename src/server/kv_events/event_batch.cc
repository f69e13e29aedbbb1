#include "server/kv_events/event_batch.h"

#define MSGPACK_NO_BOOST
#include <msgpack.hpp>

namespace celer::server {
namespace {

// vLLM's name for the memory that the model's device computes from, whatever the device is.
constexpr std::string_view kMedium = "GPU";
// Events of vLLM name the group of layers whose blocks they mean; all layers share them here.
constexpr int kGroup = 0;

class Writer {
 public:
  Writer(msgpack::sbuffer& out, KvEventLayout layout) : pack_(out), maps_(layout == KvEventLayout::kMap) {}

  void Batch(double seconds, std::span<const KvEvent> events, int64_t rank) {
    pack_.pack_array(3);
    pack_.pack_double(seconds);
    pack_.pack_array(static_cast<uint32_t>(events.size()));
    for (const KvEvent& event : events) Event(event);
    pack_.pack_int64(rank);
  }

 private:
  void Event(const KvEvent& event) {
    switch (event.kind) {
      case KvEvent::Kind::kStored:
        return Stored(event);
      case KvEvent::Kind::kRemoved:
        Begin("BlockRemoved", 3);
        Name("block_hashes");
        Hashes(event.hashes);
        Name("medium");
        Text(kMedium);
        Name("group_idx");
        pack_.pack_int(kGroup);
        return;
      case KvEvent::Kind::kCleared:
        return Begin("AllBlocksCleared", 0);
    }
  }

  void Stored(const KvEvent& event) {
    const KvScope* const scope = event.scope.get();
    const bool lora = scope && !scope->lora_name.empty();
    Begin("BlockStored", 9);
    Name("block_hashes");
    Hashes(event.hashes);
    Name("parent_block_hash");
    event.before ? Hash(*event.before) : Nil();
    Name("token_ids");
    pack_.pack_array(static_cast<uint32_t>(event.tokens.size()));
    for (const int32_t token : event.tokens) pack_.pack_int32(token);
    Name("block_size");
    pack_.pack_int64(kKvBlockTokens);
    Name("lora_id");
    lora && scope->lora_id >= 0 ? pack_.pack_int64(scope->lora_id + 1)
                                : pack_.pack_nil();  // vLLM counts from 1
    Name("medium");
    Text(kMedium);
    Name("lora_name");
    lora ? Text(scope->lora_name) : Nil();
    Name("extra_keys");
    pack_.pack_array(static_cast<uint32_t>(event.hashes.size()));
    for (size_t i = 0; i < event.hashes.size(); ++i) Keys(KvKeysOf(scope, i == 0 && !event.before));
    Name("group_idx");
    pack_.pack_int(kGroup);
  }

  // In a map the kind has the name "type".
  void Begin(std::string_view kind, uint32_t fields) {
    if (maps_)
      pack_.pack_map(fields + 1);
    else
      pack_.pack_array(fields + 1);
    Name("type");
    Text(kind);
  }
  void Name(std::string_view name) {
    if (maps_) Text(name);
  }
  void Text(std::string_view text) {
    pack_.pack_str(static_cast<uint32_t>(text.size()));
    pack_.pack_str_body(text.data(), static_cast<uint32_t>(text.size()));
  }
  void Nil() { pack_.pack_nil(); }
  // The last 64 bits, as vLLM has it by default (VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES).
  void Hash(const KvHash& hash) {
    uint64_t number = 0;
    for (const std::byte byte : std::span(hash).last<8>())
      number = number << 8 | std::to_integer<uint64_t>(byte);
    pack_.pack_uint64(number);
  }
  void Hashes(std::span<const KvHash> hashes) {
    pack_.pack_array(static_cast<uint32_t>(hashes.size()));
    for (const KvHash& hash : hashes) Hash(hash);
  }
  void Keys(const KvKeys& keys) {
    if (keys.empty()) return Nil();
    pack_.pack_array(static_cast<uint32_t>(keys.size()));
    for (const auto& key : keys) {
      if (const auto* text = std::get_if<std::string>(&key))
        Text(*text);
      else
        pack_.pack_int64(std::get<int64_t>(key));
    }
  }

  msgpack::packer<msgpack::sbuffer> pack_;
  const bool maps_;
};

}  // namespace

std::string EncodeKvEvents(double seconds, std::span<const KvEvent> events, KvEventLayout layout,
                           int64_t rank) {
  msgpack::sbuffer out;
  Writer(out, layout).Batch(seconds, events, rank);
  return {out.data(), out.size()};
}

}  // namespace celer::server
