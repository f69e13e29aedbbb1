#include "device/group/rendezvous.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

namespace celer {
namespace {

using TimePoint = SocketClock::time_point;
using Bytes = std::span<const std::byte>;

// The first bytes of every connection. Numbers are as the machine has them: another byte order is another magic.
struct Hello {
  uint64_t magic = kMagic;
  int32_t rank = 0, size = 0;
  uint32_t port = 0;  // where the rank listens
  uint32_t identity_bytes = 0;

  static constexpr uint64_t kMagic = 0x3150545f72656c63;  // "cler_TP1"
};
static_assert(sizeof(Hello) == 24);

struct Guest {
  Hello hello;
  std::string identity;
  std::string host;
};

constexpr uint32_t kMostText = 1 << 16;
// A stranger who says nothing keeps the others waiting for so long.
constexpr std::chrono::seconds kHelloTime{5};

Bytes BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

template <class T>
Bytes ObjectBytes(const T& object) {
  return std::as_bytes(std::span(&object, 1));
}

Status SendHello(const Socket& socket, const SocketGroupOptions& options, uint16_t port, TimePoint until) {
  Hello hello;
  hello.rank = options.rank;
  hello.size = options.size;
  hello.port = port;
  hello.identity_bytes = static_cast<uint32_t>(options.identity.size());
  CELER_RETURN_IF_ERROR(SendAll(socket, ObjectBytes(hello), until));
  return SendAll(socket, BytesOf(options.identity), until);
}

// Nothing from those who are no rank of any group.
std::optional<Guest> ReceiveHello(const Socket& socket, TimePoint until) {
  until = std::min(until, SocketClock::now() + kHelloTime);
  Guest guest;
  if (!ReceiveAll(socket, std::as_writable_bytes(std::span(&guest.hello, 1)), until)) return {};
  if (guest.hello.magic != Hello::kMagic || guest.hello.identity_bytes > kMostText) return {};
  guest.identity.resize(guest.hello.identity_bytes);
  if (!ReceiveAll(socket, std::as_writable_bytes(std::span(guest.identity)), until)) return {};
  const auto from = RemoteEndpoint(socket);
  if (!from) return {};
  guest.host = from->host;
  return guest;
}

// What rank 0 says: where all ranks are, or why there is no group.
struct Answer {
  bool joined = false;
  std::string text;
};

Status SendAnswer(const Socket& socket, const Answer& answer, TimePoint until) {
  const std::array<uint32_t, 2> head = {answer.joined ? 1U : 0U, static_cast<uint32_t>(answer.text.size())};
  CELER_RETURN_IF_ERROR(SendAll(socket, ObjectBytes(head), until));
  return SendAll(socket, BytesOf(answer.text), until);
}

Result<Answer> ReceiveAnswer(const Socket& socket, TimePoint until) {
  std::array<uint32_t, 2> head = {};
  CELER_RETURN_IF_ERROR(ReceiveAll(socket, std::as_writable_bytes(std::span(&head, 1)), until));
  if (head[0] > 1 || head[1] > kMostText) return Error::Corrupt("an answer that is none");
  Answer answer{head[0] == 1, std::string(head[1], '\0')};
  CELER_RETURN_IF_ERROR(ReceiveAll(socket, std::as_writable_bytes(std::span(answer.text)), until));
  return answer;
}

// "HOST PORT" in a line for each rank.
Result<std::vector<Endpoint>> ParseTable(std::string_view text, int size) {
  std::vector<Endpoint> table;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size() - 1);
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    const size_t space = std::min(line.find(' '), line.size());
    Endpoint endpoint{std::string(line.substr(0, space)), 0};
    const std::string_view digits = line.substr(std::min(space + 1, line.size()));
    const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), endpoint.port);
    if (error != std::errc() || stop != digits.data() + digits.size())
      return Error::Corrupt("rank 0 sent a table of ranks with the line '", line, "'");
    table.push_back(std::move(endpoint));
  }
  if (std::ssize(table) != size)
    return Error::Corrupt("rank 0 sent a table of ", table.size(), " ranks of ", size);
  return table;
}

std::string PeerName(int rank, const std::string& host) {
  return fmt::format("rank {} ({})", rank, host);
}

class Host {
 public:
  explicit Host(const SocketGroupOptions& options)
      : options_(options), until_(SocketClock::now() + options.join) {
    peers_.resize(static_cast<size_t>(options.size));
    ports_.resize(peers_.size());
    hosts_.resize(peers_.size());
  }

  Result<std::vector<Peer>> Run() {
    CELER_ASSIGN(const Socket listener, Listen(options_.host, options_.port));
    if (const Status met = TakeAll(listener); !met) {
      for (const Peer& peer : peers_)
        if (peer.socket) Tell(peer.socket, {false, met.error().message()});
      return met.error();
    }
    std::string table;
    for (size_t r = 0; r < peers_.size(); ++r)
      table += fmt::format("{} {}\n", r == 0 ? "-" : hosts_[r], ports_[r]);
    for (size_t r = 1; r < peers_.size(); ++r)
      if (const Status sent = SendAnswer(peers_[r].socket, {true, table}, until_); !sent)
        return Error::Device(peers_[r].name, " has ended: ", sent.error().message());
    return std::move(peers_);
  }

 private:
  void Tell(const Socket& socket, const Answer& answer) const {
    // Who has gone already needs no answer.
    [[maybe_unused]] const Status sent = SendAnswer(socket, answer, SocketClock::now() + kHelloTime);
  }

  Status TakeAll(const Socket& listener) {
    for (int joined = 1; joined < options_.size;) {
      CELER_ASSIGN(Socket socket, Accept(listener, until_));
      if (!socket) return Error::Device(Missing());
      const std::optional<Guest> guest = ReceiveHello(socket, until_);
      if (!guest) continue;
      if (const Status fits = Check(*guest); !fits) {
        Tell(socket, {false, fits.error().message()});
        return fits;
      }
      const auto rank = static_cast<size_t>(guest->hello.rank);
      peers_[rank] = {std::move(socket), PeerName(guest->hello.rank, guest->host)};
      hosts_[rank] = guest->host;
      ports_[rank] = guest->hello.port;
      ++joined;
    }
    return {};
  }

  Status Check(const Guest& guest) const {
    const Hello& hello = guest.hello;
    if (hello.size != options_.size)
      return Error::Invalid("a process on ", guest.host, " was started for a group of ", hello.size,
                            " ranks, rank 0 for one of ", options_.size);
    if (hello.rank < 1 || hello.rank >= options_.size)
      return Error::Invalid("a process on ", guest.host, " says that it is rank ", hello.rank, " of ",
                            options_.size);
    if (peers_[static_cast<size_t>(hello.rank)].socket)
      return Error::Invalid("two processes say that they are rank ", hello.rank);
    if (guest.identity != options_.identity)
      return Error::Invalid("rank ", hello.rank, " on ", guest.host,
                            " is not for the same model and options: '", guest.identity, "' there, '",
                            options_.identity, "' at rank 0");
    return {};
  }

  std::string Missing() const {
    std::string ranks;
    for (size_t r = 1; r < peers_.size(); ++r)
      if (!peers_[r].socket) ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", r);
    return fmt::format("of {} ranks these have not come to {}:{} within {} s: {}", options_.size,
                       options_.host, options_.port, options_.join.count() / 1000, ranks);
  }

  const SocketGroupOptions& options_;
  TimePoint until_;
  std::vector<Peer> peers_;
  std::vector<uint32_t> ports_;
  std::vector<std::string> hosts_;
};

Result<std::vector<Peer>> JoinHost(const SocketGroupOptions& options) {
  const TimePoint until = SocketClock::now() + options.join;
  std::vector<Peer> peers(static_cast<size_t>(options.size));
  const auto lost = [&](const Error& error) {
    return Error::Device("rank ", options.rank, " does not find its group: ", error.message());
  };
  auto first = Connect(options.host, options.port, until);
  if (!first) return lost(first.error());
  const auto local = LocalEndpoint(*first);
  if (!local) return lost(local.error());
  CELER_ASSIGN(const Socket listener, Listen(local->host, 0));
  const auto own = LocalEndpoint(listener);
  if (!own) return lost(own.error());
  if (const Status sent = SendHello(*first, options, own->port, until); !sent) return lost(sent.error());
  const auto answer = ReceiveAnswer(*first, until);
  if (!answer) return lost(answer.error());
  if (!answer->joined) return Error::Device(answer->text);
  CELER_ASSIGN(const std::vector<Endpoint> table, ParseTable(answer->text, options.size));
  peers[0] = {std::move(*first), PeerName(0, options.host)};
  for (int r = 1; r < options.rank; ++r) {
    const Endpoint& at = table[static_cast<size_t>(r)];
    auto socket = Connect(at.host, at.port, until);
    if (!socket) return lost(socket.error());
    if (const Status sent = SendHello(*socket, options, 0, until); !sent) return lost(sent.error());
    peers[static_cast<size_t>(r)] = {std::move(*socket), PeerName(r, at.host)};
  }
  for (int missing = options.size - 1 - options.rank; missing > 0;) {
    CELER_ASSIGN(Socket socket, Accept(listener, until));
    if (!socket)
      return Error::Device("rank ", options.rank, ": ", missing, " ranks have not come within ",
                           options.join.count() / 1000, " s");
    const auto guest = ReceiveHello(socket, until);
    if (!guest || guest->hello.rank <= options.rank || guest->hello.rank >= options.size) continue;
    Peer& peer = peers[static_cast<size_t>(guest->hello.rank)];
    if (peer.socket) continue;
    peer = {std::move(socket), PeerName(guest->hello.rank, guest->host)};
    --missing;
  }
  return peers;
}

}  // namespace

Result<std::vector<Peer>> Meet(const SocketGroupOptions& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size)
    return Error::Invalid("rank ", options.rank, " of ", options.size, " ranks: expected 0 to ",
                          options.size - 1);
  if (options.identity.size() > kMostText)
    return Error::Invalid("the options of a group take ", options.identity.size(), " bytes, at most ",
                          kMostText);
  auto peers = options.rank == 0 ? Host(options).Run() : JoinHost(options);
  if (!peers) return peers;
  for (const Peer& peer : *peers)
    if (peer.socket) PrepareForMessages(peer.socket, options.watchdog);
  return peers;
}

}  // namespace celer
