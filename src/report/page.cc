#include "report/page.h"

#include "base/check.h"
#include "io/json/json.h"

namespace celer::cli {
namespace {

using Json = nlohmann::ordered_json;

// Only strings can hold a '<', and an escaped one can neither end the script nor begin a comment in it.
std::string ScriptOf(const char* id, const Json& value) {
  std::string out = std::string("<script type=\"application/json\" id=\"") + id + "\">";
  for (const char c : JsonText(value)) c == '<' ? out += "\\u003c" : out += c;
  return out + "</script>\n";
}

void Replace(std::string* text, std::string_view what, const std::string& with) {
  const size_t at = text->find(what);
  CELER_CHECK(at != std::string::npos);
  text->replace(at, what.size(), with);
}

}  // namespace

Page::Page(const std::string& title, const std::string& heading, const Facts& facts)
    : page_({{"title", title}, {"heading", heading}, {"facts", facts}, {"sections", Json::array()}}) {}

void Page::Section(const std::string& title) {
  page_["sections"].push_back({{"title", title}, {"parts", Json::array()}});
}

void Page::AddPart(const char* kind, Json part) {
  page_["sections"].back()["parts"].push_back({{kind, std::move(part)}});
}

void Page::Add(const Table& table, const std::string& row_ids) {
  Json words = Json::array();  // columns that are aligned to the left
  for (size_t c = 0; c < table.header.size(); ++c)
    words.push_back(c == 0 || table.all_words || (table.last_is_words && c + 1 == table.header.size()));
  AddPart("table", {{"title", table.title},
                    {"header", table.header},
                    {"words", words},
                    {"rows", table.rows},
                    {"notes", table.notes},
                    {"ids", row_ids}});
}

void Page::Add(const Drawing& drawing, const std::string& title, bool own_size) {
  AddPart(own_size ? "drawing" : "picture", DrawingSvg(drawing, title));
}

void Page::Add(const std::vector<PageBar>& bars) {
  Json rows = Json::array();
  for (const PageBar& bar : bars)
    rows.push_back({{"name", bar.name},
                    {"text", bar.text},
                    {"track", bar.track},
                    {"bar", bar.bar},
                    {"floor", bar.floor},
                    {"low", bar.low},
                    {"high", bar.high}});
  AddPart("bars", rows);
}

void Page::Add(const std::string& text) {
  AddPart("text", text);
}

std::string Page::Html(const Json& data) const {
  std::string out(ViewerFiles().front().body);
  Replace(&out, "<title>celer</title>",
          "<title>" + XmlEscape(page_["title"].get<std::string>()) + "</title>");
  Replace(&out, "<!-- data -->\n", ScriptOf("page", page_) + ScriptOf("data", data));
  return out;
}

}  // namespace celer::cli
