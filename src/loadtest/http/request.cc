// The prompts and bodies of a load's requests.
#include <algorithm>
#include <cmath>
#include <iterator>

#include "loadtest/http/load.h"

namespace celer::cli {
namespace {

// Common words: with a space before it, each is one token of nearly every vocabulary.
constexpr const char* kWords[] = {
    "the",     "of",      "and",     "to",     "in",     "is",     "that",    "for",     "it",     "as",
    "was",     "with",    "be",      "by",     "on",     "not",    "he",      "his",     "but",    "at",
    "are",     "this",    "have",    "from",   "or",     "had",    "an",      "they",    "which",  "one",
    "you",     "were",    "all",     "her",    "she",    "there",  "would",   "their",   "we",     "him",
    "been",    "has",     "when",    "who",    "will",   "no",     "more",    "if",      "out",    "so",
    "what",    "up",      "said",    "about",  "than",   "into",   "them",    "can",     "only",   "other",
    "time",    "new",     "some",    "could",  "these",  "two",    "may",     "first",   "then",   "do",
    "any",     "like",    "my",      "now",    "over",   "such",   "our",     "man",     "me",     "even",
    "most",    "made",    "after",   "also",   "did",    "many",   "off",     "before",  "must",   "well",
    "back",    "through", "years",   "much",   "where",  "your",   "way",     "down",    "should", "because",
    "long",    "each",    "just",    "state",  "those",  "people", "how",     "too",     "little", "good",
    "world",   "make",    "very",    "year",   "still",  "see",    "own",     "work",    "men",    "day",
    "get",     "here",    "between", "life",   "being",  "under",  "three",   "never",   "know",   "same",
    "last",    "another", "while",   "us",     "might",  "great",  "go",      "come",    "since",  "against",
    "right",   "came",    "take",    "few",    "house",  "use",    "during",  "without", "again",  "place",
    "around",  "old",     "however", "home",   "found",  "mother", "thought", "part",    "next",   "early",
    "several", "always",  "away",    "water",  "small",  "large",  "young",   "number",  "given",  "order",
    "often",   "second",  "white",   "high",   "things", "book",   "study",   "light",   "night",  "hand",
    "side",    "head",    "end",     "city",   "river",  "earth",  "tree",    "land",    "sun",    "wind",
    "sea",     "road",    "field",   "hill",   "stone",  "bird",   "fish",    "horse",   "farm",   "ship",
    "town",    "king",    "war",     "peace",  "law",    "art",    "music",   "word",    "line",   "form",
    "table",   "door",    "window",  "room",   "floor",  "wall",   "street",  "church",  "school", "class",
    "game",    "team",    "player",  "story",  "letter", "paper",  "color",   "green",   "blue",   "red",
    "black",   "gold",    "silver",  "iron",   "wood",   "glass",  "fire",    "ice",     "snow",   "rain",
    "spring",  "summer",  "winter",  "north",  "south",  "east",   "west",    "morning", "week",   "month",
    "hour",    "moment",  "child",   "father", "friend", "garden"};

std::string Words(const std::vector<int32_t>& numbers) {
  std::string text;
  for (const int32_t number : numbers) {
    if (!text.empty()) text += ' ';
    text += kWords[number];
  }
  return text;
}

}  // namespace

Trace RequestMaker::InWords(Trace trace) const {
  if (token_ids > 0) return trace;
  trace.block_tokens *= words_per_token;
  for (TraceRequest& request : trace.requests) {
    const double words = (static_cast<double>(request.prompt) - tokens_before) * words_per_token;
    request.prompt = std::max<int64_t>(1, std::llround(words));
  }
  return trace;
}

nlohmann::json RequestMaker::Body(const Trace& trace, size_t i, bool stream) const {
  nlohmann::json body = {
      {"model", model}, {"max_tokens", trace.requests[i].output}, {"temperature", 0}, {"ignore_eos", true}};
  if (token_ids > 0)
    body["prompt"] = PromptOf(trace, i, token_ids);
  else if (std::string text = Words(PromptOf(trace, i, std::ssize(kWords))); api == ServerApi::kChat)
    body["messages"] = nlohmann::json::array({{{"role", "user"}, {"content", std::move(text)}}});
  else
    body["prompt"] = std::move(text);
  if (stream) {
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}};
  }
  if (!more.is_null()) body.merge_patch(more);
  return body;
}

}  // namespace celer::cli
