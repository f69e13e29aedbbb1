// Finds tags in a text that arrives in pieces. What may yet become a tag is held back; each byte is looked at a
// bounded number of times, however the text is cut.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace celer::server {

class TagScanner {
 public:
  static constexpr int kNone = -1;

  void Push(std::string_view text) {
    text_.erase(0, at_);
    at_ = 0;
    text_ += text;
  }

  struct Found {
    int tag = kNone;               // its index; it is consumed
    std::string_view before = {};  // valid until the next Push()
  };
  // The text up to the first of the tags, or up to what may become one. `last`: nothing follows. Empty tags are
  // ignored.
  Found Next(std::span<const std::string_view> tags, bool last) {
    const size_t begin = at_;
    for (; at_ < text_.size(); ++at_) {
      const std::string_view rest = std::string_view(text_).substr(at_);
      for (size_t i = 0; i < tags.size(); ++i) {
        if (tags[i].empty() || tags[i][0] != rest[0]) continue;
        const std::string_view before = std::string_view(text_).substr(begin, at_ - begin);
        if (rest.starts_with(tags[i])) {
          at_ += tags[i].size();
          return {static_cast<int>(i), before};
        }
        if (!last && tags[i].starts_with(rest)) return {kNone, before};
      }
    }
    return {kNone, std::string_view(text_).substr(begin)};
  }

  // What is not consumed yet.
  std::string_view rest() const { return std::string_view(text_).substr(at_); }
  void Skip(size_t count) { at_ += count; }

 private:
  std::string text_;
  size_t at_ = 0;
};

}  // namespace celer::server
