#include "server/kv_transfer/read_kv_transfer.h"

#include <charconv>

namespace celer::server {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 40;

std::string Name(const char* field) {
  return std::string("kv_transfer_params.") + field;
}

Refusal ReadBool(const Json& object, const char* field, bool* out) {
  const Json* const value = Field(object, field);
  if (value && !value->is_boolean()) return Bad(Name(field), *value, "true or false");
  if (value) *out = *value;
  return {};
}

Refusal ReadText(const Json& object, const char* field, std::string* out) {
  const Json* const value = Field(object, field);
  if (!value) return {};
  if (!value->is_string() || value->get_ref<const std::string&>().size() > 256)
    return Bad(Name(field), *value, "a string of at most 256 bytes");
  *out = *value;
  return {};
}

// A port may be written as a string.
Refusal ReadNumber(const Json& object, const char* field, int64_t most, int64_t* out) {
  const Json* const value = Field(object, field);
  if (!value) return {};
  const std::string expected = "a whole number from 0 to " + std::to_string(most);
  if (value->is_string()) {
    const auto& text = value->get_ref<const std::string&>();
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
    if (error != std::errc() || end != text.data() + text.size()) return Bad(Name(field), *value, expected);
  } else if (!value->is_number_integer() || value->get<double>() > 1e15) {
    return Bad(Name(field), *value, expected);
  } else {
    *out = *value;
  }
  if (*out < 0 || *out > most) return Bad(Name(field), *value, expected);
  return {};
}

}  // namespace

Refusal ReadKvTransfer(const Json& value, std::optional<KvTransferParams>* out) {
  KvTransferParams params;
  if (auto refusal = ReadBool(value, "do_remote_decode", &params.remote_decode)) return refusal;
  if (auto refusal = ReadBool(value, "do_remote_prefill", &params.remote_prefill)) return refusal;
  if (auto refusal = ReadText(value, "remote_host", &params.host)) return refusal;
  if (auto refusal = ReadText(value, "remote_engine_id", &params.engine)) return refusal;
  if (auto refusal = ReadText(value, "transfer_id", &params.transfer)) return refusal;
  if (auto refusal = ReadNumber(value, "remote_port", 65535, &params.port)) return refusal;
  if (auto refusal = ReadNumber(value, "remote_num_tokens", kMostTokens, &params.tokens)) return refusal;
  if (params.remote_decode || params.remote_prefill) *out = std::move(params);
  return {};
}

}  // namespace celer::server
