// Answers of /v1/responses, for previous_response_id. Bounded: the oldest are evicted.
#pragma once

#include <list>
#include <map>
#include <string>

#include "server/api/api_error.h"

namespace celer::server {

class ResponseStore {
 public:
  ResponseStore(size_t max_responses, size_t max_bytes)
      : max_responses_(max_responses), max_bytes_(max_bytes) {}

  struct Entry {
    std::string id;
    Json messages;     // the conversation with the answer at its end, without instructions
    std::string body;  // as it was sent
    size_t bytes = 0;
  };

  void Add(Entry entry) {
    entry.bytes =
        entry.body.size() + entry.messages.dump(-1, ' ', false, Json::error_handler_t::replace).size();
    bytes_ += entry.bytes;
    entries_.push_back(std::move(entry));
    by_id_[entries_.back().id] = std::prev(entries_.end());
    while (entries_.size() > max_responses_ || bytes_ > max_bytes_) Remove(entries_.front().id);
  }
  const Entry* Find(const std::string& id) const {
    const auto it = by_id_.find(id);
    return it == by_id_.end() ? nullptr : &*it->second;
  }
  bool Remove(const std::string& id) {
    const auto it = by_id_.find(id);
    if (it == by_id_.end()) return false;
    bytes_ -= it->second->bytes;
    entries_.erase(it->second);
    by_id_.erase(it);
    return true;
  }
  size_t size() const { return entries_.size(); }

 private:
  const size_t max_responses_, max_bytes_;
  size_t bytes_ = 0;
  std::list<Entry> entries_;  // the oldest first
  std::map<std::string, std::list<Entry>::iterator, std::less<>> by_id_;
};

}  // namespace celer::server
