// /v1/embeddings
#include <fmt/format.h>
#include <openssl/evp.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "server/formats/format.h"

namespace celer::server {
namespace {

class EmbeddingFormat : public Format {
 public:
  const char* id_prefix() const override { return "embd-"; }

  std::string Text(const Reply& reply) override {
    std::string text = "{\"object\":\"list\",\"data\":[";
    for (size_t i = 0; i < reply.embeddings.size(); ++i)
      text += fmt::format("{}{{\"object\":\"embedding\",\"index\":{},\"embedding\":{}}}", i > 0 ? "," : "", i,
                          reply.embeddings[i]);
    const int64_t tokens = reply.PromptTokens();
    const Json usage = {{"prompt_tokens", tokens},
                        {"total_tokens", tokens},
                        {"prompt_tokens_details", {{"cached_tokens", reply.cached_tokens}}}};
    text += "],\"model\":" + Dump(reply.prepared.model_name) + ",\"usage\":" + Dump(usage) + "}";
    return text;
  }

  // It is never a stream.
  Json Whole(const Reply&) override { return nullptr; }
  void Start(const Reply&, std::string*) override {}
  void Delta(const Reply&, const Answer&, const AnswerDelta&, std::string*) override {}
  void Finish(const Reply&, std::string*) override {}
  void Fail(const Reply&, const ApiError&, std::string*) override {}
};

std::string Base64(std::span<const float> values) {
  static_assert(std::endian::native == std::endian::little, "base64 has the low byte first");
  const auto bytes = static_cast<int>(values.size_bytes());
  std::string out(4 * (values.size_bytes() + 2) / 3 + 4, '\0');
  const int length = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                     reinterpret_cast<const unsigned char*>(values.data()), bytes);
  out.resize(length);
  return out;
}

}  // namespace

bool NormaliseEmbedding(std::vector<float>* values, int64_t dimensions) {
  if (dimensions > 0) values->resize(dimensions);
  double squares = 0;
  for (const float value : *values) squares += double{value} * double{value};
  const double length = std::sqrt(squares);
  if (!(length > 0) || !std::isfinite(length)) return false;
  for (float& value : *values) value = static_cast<float>(double{value} / length);
  return true;
}

std::string EmbeddingText(std::span<const float> values, Encoding encoding) {
  if (encoding == Encoding::kBase64) return "\"" + Base64(values) + "\"";
  std::string text = "[";
  for (const float value : values)
    fmt::format_to(std::back_inserter(text), "{}{}", text.size() > 1 ? "," : "", value);
  return text + "]";
}

std::unique_ptr<Format> MakeEmbeddingFormat() {
  return std::make_unique<EmbeddingFormat>();
}

}  // namespace celer::server
