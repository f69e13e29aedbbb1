// celer tokenize: what a model's tokenizer makes of a text.
#include <fmt/format.h>

#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/utf8.h"
#include "cli/shared/command.h"
#include "cli/shared/commands.h"
#include "hub/model_path.h"
#include "io/json/json.h"
#include "text/tokenizer/load_tokenizer.h"
#include "text/tokenizer/tokenizer.h"

namespace celer::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxTextBytes = size_t{1} << 30;

Result<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& model) {
  CELER_ASSIGN(const fs::path path, ResolveModelPath(model));
  return LoadTokenizer(path);
}

Result<std::string> ReadInput(const std::string& path) {
  if (path == "-") return std::string(std::istreambuf_iterator<char>(std::cin), {});
  return ReadTextFile(path, kMaxTextBytes);
}

// "1,2 3" -> {1, 2, 3}
Result<std::vector<int32_t>> ParseIds(const std::string& text) {
  std::vector<int32_t> ids;
  for (size_t at = 0; (at = text.find_first_not_of(", []\n\t", at)) != std::string::npos;) {
    size_t end = text.find_first_of(", []\n\t", at);
    if (end == std::string::npos) end = text.size();
    const std::string word = text.substr(at, end - at);
    at = end;
    if (word.size() > 9 || word.find_first_not_of("0123456789") != std::string::npos)
      return Error::Invalid("--decode: '", word, "' is not a token id; give numbers like 1,15043,29871");
    ids.push_back(std::stoi(word));
  }
  return ids;
}

// What a terminal can show: control characters and bad UTF-8 are escaped.
std::string ShownPiece(std::string_view piece) {
  return JsonText(nlohmann::json(std::string(piece)));
}

Result<std::string> FromHex(const std::string& hex) {
  if (hex.size() % 2 || hex.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos)
    return Error::Invalid("'hex' is not pairs of hexadecimal digits");
  std::string out;
  for (size_t i = 0; i < hex.size(); i += 2)
    out.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return out;
}

Result<nlohmann::json> RunLine(const Tokenizer& tokenizer, const std::string& line) {
  const nlohmann::json request = nlohmann::json::parse(line, nullptr, false);
  if (!request.is_object()) return Error::Invalid("is not a JSON object");
  const auto flag = [&](const char* key) { return !request.contains(key) || request[key] != false; };
  if (request.contains("ids")) {
    std::vector<int32_t> ids;
    if (!request["ids"].is_array()) return Error::Invalid("'ids' is not a list");
    for (const nlohmann::json& id : request["ids"]) {
      if (!id.is_number_integer() || id < 0 || id > INT32_MAX)
        return Error::Invalid("'ids' has ", JsonText(id), ", not a token id");
      ids.push_back(id.get<int32_t>());
    }
    Detokenizer stream(tokenizer, flag("skip_special"));
    std::string streamed;
    for (const int32_t id : ids) streamed += stream.Push(id);
    streamed += stream.Finish();
    return nlohmann::json{{"text", tokenizer.Decode(ids, flag("skip_special"))}, {"streamed", streamed}};
  }
  std::string text;
  if (request.contains("hex") && request["hex"].is_string()) {
    CELER_ASSIGN(text, FromHex(request["hex"]));
  } else if (request.contains("text") && request["text"].is_string()) {
    text = request["text"].get<std::string>();
  } else {
    return Error::Invalid("has none of 'text', 'hex' and 'ids'");
  }
  return nlohmann::json{{"ids", tokenizer.Encode(text, {flag("add_special"), flag("parse_special")})}};
}

int RunBatch(const Tokenizer& tokenizer, const std::string& path) {
  std::istringstream file;
  if (path != "-") {
    auto text = ReadTextFile(path, kMaxTextBytes);
    if (!text) return Fail(text.error());
    file.str(std::move(*text));
  }
  std::istream& in = path == "-" ? std::cin : file;
  std::string line;
  for (size_t number = 1; std::getline(in, line); ++number) {
    if (line.empty()) continue;
    const auto answer = RunLine(tokenizer, line);
    if (!answer) return Fail(answer.error().WithContext(fmt::format("{}, line {}", path, number)));
    fmt::print("{}\n", JsonText(*answer));
  }
  return kOk;
}

void PrintIds(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool as_json) {
  if (!as_json) {
    for (const int32_t id : ids)
      fmt::print("{:>8}  {}{}\n", id, ShownPiece(tokenizer.Piece(id)),
                 tokenizer.IsSpecial(id) ? "  special" : "");
    fmt::print("{} tokens\n", ids.size());
    return;
  }
  nlohmann::json pieces = nlohmann::json::array();
  for (const int32_t id : ids) pieces.push_back(utf8::ToValid(tokenizer.Piece(id)));
  fmt::print("{}\n",
             JsonText(nlohmann::json::object({{"ids", ids}, {"pieces", pieces}, {"count", ids.size()}})));
}

}  // namespace

int TokenizeCommand(const std::vector<std::string>& args) {
  CommandLine app("tokenize", "text to token ids, and back", "celer tokenize smollm2 \"Hello world\"");
  std::string model, text, file, decode, batch;
  bool as_json = false, no_special = false, plain = false;
  app.add_option("MODEL", model,
                 "a pulled name (smollm2), GGUF file (also with a vocabulary only), Hugging Face directory, "
                 "tokenizer.json, tokenizer.model or tokenizer.bin")
      ->required();
  auto* text_option = app.add_option("TEXT", text, "the text");
  auto* file_option = app.add_option("--file", file, "read the text from this file; - for standard input");
  auto* decode_option = app.add_option("--decode", decode, "token ids to turn back into text: 1,15043,29871");
  auto* batch_option = app.add_option(
      "--batch", batch,
      "one JSON object per line, in and out: {\"text\": ...}, {\"hex\": ...} (any bytes) or {\"ids\": "
      "[...]}; "
      "with \"add_special\", \"parse_special\", \"skip_special\": false; - for standard input");
  app.add_flag("--json", as_json, "one JSON object: ids, pieces, count");
  app.add_flag("--no-special", no_special,
               "add no BOS or EOS; with --decode, keep special tokens in the text");
  app.add_flag("--plain-text", plain,
               "special-token strings in the text are plain text, as in what a user types");
  if (const auto stop = Parse(app, args)) return *stop;
  if (text_option->count() + file_option->count() + decode_option->count() + batch_option->count() != 1)
    return Fail(Error::Invalid("tokenize needs one of TEXT, --file, --decode, --batch"));

  auto tokenizer = OpenTokenizer(model);
  if (!tokenizer) return Fail(tokenizer.error());
  if (batch_option->count()) return RunBatch(**tokenizer, batch);
  if (decode_option->count()) {
    const auto ids = ParseIds(decode);
    if (!ids) return Fail(ids.error());
    for (const int32_t id : *ids)
      if (id >= (*tokenizer)->vocab_size())
        return Fail(Error::Invalid("--decode: there is no token ", id, "; the vocabulary has ",
                                   (*tokenizer)->vocab_size(), " tokens"));
    const std::string decoded = (*tokenizer)->Decode(*ids, !no_special);
    as_json ? fmt::print("{}\n", JsonText(nlohmann::json::object({{"text", decoded}})))
            : fmt::print("{}\n", decoded);
    return kOk;
  }
  if (file_option->count()) {
    auto read = ReadInput(file);
    if (!read) return Fail(read.error());
    text = std::move(*read);
  }
  PrintIds(**tokenizer, (*tokenizer)->Encode(text, {!no_special, !plain}), as_json);
  return kOk;
}

}  // namespace celer::cli
