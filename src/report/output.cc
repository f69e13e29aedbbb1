#include "report/output.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "report/exit_code.h"

namespace celer::cli {
namespace {

bool g_write_failed = false;  // of WriteOut(), which stdio does not know of
int g_why = 0;                // the errno of the first write that failed

constexpr int kPlainWidth = 80, kLeastWidth = 40;

int WidthOf(int fd) {
  if (const char* set = std::getenv("COLUMNS")) {
    int columns = 0;
    const char* end = set + std::strlen(set);
    if (std::from_chars(set, end, columns).ptr == end && columns > 0) return std::max(columns, kLeastWidth);
  }
  winsize size = {};
  if (::isatty(fd) && ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    return std::max<int>(size.ws_col, kLeastWidth);
  return kPlainWidth;
}

}  // namespace

void PrepareStreams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF)  // open() takes the lowest free number, which is this one
      if (::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) return;
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

int FinishOutput(int code) {
  const bool before = g_write_failed || std::ferror(stdout) != 0;
  const bool arrived = std::fflush(stdout) == 0 && !before && ::close(STDOUT_FILENO) == 0;
  if (arrived) return code;
  const int why = before ? g_why : errno;
  Say("error: standard output {}\n", why == EPIPE ? "was closed before all of it was written"
                                     : why == 0   ? "cannot be written"
                                                  : fmt::format("cannot be written: {}", std::strerror(why)));
  return code == kOk ? static_cast<int>(kFailed) : code;
}

bool IsOutputError(const std::exception& error) {
  if (std::ferror(stdout) == 0) return false;
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  if (system && g_why == 0) g_why = system->code().value();
  return true;
}

bool WriteOut(std::string_view text) {
  if (g_write_failed || std::ferror(stdout) != 0) return false;
  if (std::fflush(stdout) != 0) {  // what was printed before comes first
    g_why = errno;
    return false;
  }
  // Not by stdio: a Ctrl-C while a slow reader lets a write wait would count as an error there, and lose
  // text.
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(written);
    } else if (errno != EINTR) {
      g_why = errno;
      g_write_failed = true;
      return false;
    }
  }
  return true;
}

int OutputWidth() {
  return WidthOf(STDOUT_FILENO);
}

int MessageWidth() {
  return WidthOf(STDERR_FILENO);
}

size_t Columns(std::string_view text) {
  const auto starts = [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; };
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), starts));
}

std::string Wrap(std::string_view text, int width, int indent, int at) {
  std::string out;
  const auto limit = static_cast<size_t>(width);
  auto column = static_cast<size_t>(at);
  bool fresh = true;  // nothing on this line yet
  for (size_t from = 0; from < text.size();) {
    const size_t end = std::min(text.find_first_of(" \n", from), text.size());
    const std::string_view word = text.substr(from, end - from);
    const size_t wide = Columns(word);
    if (!fresh && column + 1 + wide > limit) {
      out += "\n" + std::string(static_cast<size_t>(indent), ' ');
      column = static_cast<size_t>(indent);
      fresh = true;
    }
    if (!fresh) out += ' ';
    out += word;
    column += wide + (fresh ? 0 : 1);
    fresh = false;
    if (end < text.size() && text[end] == '\n') {
      out += "\n" + std::string(end + 1 < text.size() ? static_cast<size_t>(indent) : 0, ' ');
      column = static_cast<size_t>(indent);
      fresh = true;
    }
    from = end + 1;
  }
  return out;
}

std::string FactLine(std::string_view name, std::string_view value, int width) {
  constexpr int kNames = 11;
  return fmt::format("{:<{}}{}\n", name, kNames, Wrap(value, width, kNames, kNames));
}

std::string FactsText(const Facts& facts) {
  std::string out;
  for (const auto& [name, value] : facts) out += FactLine(name, value, OutputWidth());
  return out;
}

}  // namespace celer::cli
