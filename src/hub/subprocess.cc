#include "hub/subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "base/check.h"

extern char** environ;

namespace celer::cli {
namespace {

constexpr size_t kMaxOutput = size_t{64} << 20;
constexpr size_t kMaxErrors = size_t{16} << 10;
constexpr int kTickMs = 100;
constexpr int kEndMs = 20;  // between looks when only the end is waited for

class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  ~Fd() { Reset(); }
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  void Reset() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

struct Pipe {
  Fd read, write;
};

Result<Pipe> MakePipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return Error::Io("cannot make a pipe: ", std::strerror(errno));
  return Pipe{Fd(fds[0]), Fd(fds[1])};
}

// One end of a pipe that is read until it is closed. False when more came than may be kept.
struct Capture {
  Fd fd;
  std::string* text = nullptr;
  bool keep_tail = false;  // else refuse more than kMaxOutput

  bool Read() {
    std::array<char, 65536> buffer;
    const ssize_t n = ::read(fd.get(), buffer.data(), buffer.size());
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (n <= 0) {
      fd.Reset();
      return true;
    }
    text->append(buffer.data(), static_cast<size_t>(n));
    if (keep_tail && text->size() > 2 * kMaxErrors) text->erase(0, text->size() - kMaxErrors);
    return keep_tail || text->size() <= kMaxOutput;
  }
};

std::vector<std::string> EnvironmentWith(const std::vector<std::pair<std::string, std::string>>& added) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    const bool replaced =
        std::any_of(added.begin(), added.end(), [&](const auto& pair) { return pair.first == name; });
    if (!replaced) environment.emplace_back(text);
  }
  for (const auto& [name, value] : added) environment.push_back(name + "=" + value);
  return environment;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

int ExitCodeOf(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// What the new process does between fork() and the program: only what a signal handler may. It dies with us,
// also when we are killed: a download that goes on alone would write into the file of the next one.
[[noreturn]] void Become(pid_t parent, const std::array<int, 3>& streams, char* const* argv,
                         char* const* environment, int report) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // the parent died before prctl(): no signal will come
  for (const int ours : {SIGPIPE, SIGXFSZ}) ::signal(ours, SIG_DFL);  // main() ignores them
  bool ready = true;
  for (int as = 0; as < 3; ++as) ready = ready && ::dup2(streams[as], as) == as;
  if (ready) ::execvpe(argv[0], argv, environment);
  const int why = errno;
  if (::write(report, &why, sizeof why) < 0) ::_exit(126);
  ::_exit(127);
}

// Follows the program to its end; false when it wrote too much and was stopped.
bool Follow(pid_t pid, std::vector<Capture>& captures, const SubprocessOptions& options, int* status,
            bool* given_up) {
  bool within = true;
  for (;;) {
    std::vector<pollfd> polled;
    for (const Capture& capture : captures)
      if (capture.fd.get() >= 0) polled.push_back({capture.fd.get(), POLLIN, 0});
    ::poll(polled.data(), polled.size(), polled.empty() ? kEndMs : kTickMs);
    // Looked at before reading: what it wrote before it ended is then read below. A pipe that a grandchild
    // still holds open is not waited for.
    const bool ended = ::waitpid(pid, status, WNOHANG) == pid;
    for (Capture& capture : captures)
      for (bool more = true; more && capture.fd.get() >= 0;) {
        pollfd now{capture.fd.get(), POLLIN, 0};
        more = ::poll(&now, 1, 0) > 0;
        if (more && !capture.Read()) {
          if (within && !ended) ::kill(pid, SIGKILL);
          within = false;
          capture.fd.Reset();
        }
      }
    if (options.tick) options.tick();
    if (ended) return within;
    if (!*given_up && options.give_up && options.give_up()) {
      *given_up = true;
      ::kill(pid, SIGKILL);
    }
  }
}

}  // namespace

Result<SubprocessResult> RunProgram(const std::vector<std::string>& argv, const SubprocessOptions& options) {
  CELER_CHECK(!argv.empty());
  CELER_CHECK_LE(options.input.size(), 4096u);  // so that it fits into the pipe before anybody reads
  SubprocessResult result;
  CELER_ASSIGN(Pipe in, MakePipe());
  if (!options.input.empty() && ::write(in.write.get(), options.input.data(), options.input.size()) < 0)
    return Error::Io(argv[0], ": cannot pass its input: ", std::strerror(errno));
  CELER_ASSIGN(Pipe out, MakePipe());
  CELER_ASSIGN(Pipe err, MakePipe());
  CELER_ASSIGN(Pipe report, MakePipe());  // of why the program could not be started; closed if it could
  // Nothing to read is an empty pipe. The copies of our own stream lie above the three that are replaced.
  const Fd errors(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3));
  const std::array<int, 3> streams = {in.read.get(), options.capture_output ? out.write.get() : errors.get(),
                                      options.capture_errors ? err.write.get() : errors.get()};
  std::vector<std::string> arguments = argv;
  std::vector<std::string> environment = EnvironmentWith(options.environment);
  const std::vector<char*> argument_list = Pointers(arguments), environment_list = Pointers(environment);
  const pid_t parent = ::getpid(), pid = ::fork();
  if (pid < 0) return Error::Io(argv[0], ": cannot be run: ", std::strerror(errno));
  if (pid == 0) Become(parent, streams, argument_list.data(), environment_list.data(), report.write.get());
  for (Fd* ours : {&in.read, &in.write, &out.write, &err.write, &report.write}) ours->Reset();

  int status = 0, error = 0;
  ssize_t told;
  do {
    told = ::read(report.read.get(), &error, sizeof error);
  } while (told < 0 && errno == EINTR);
  if (told > 0) {
    ::waitpid(pid, &status, 0);
    if (error == ENOENT)
      return Error::NotFound("the program '", argv[0], "' is not installed, or not on the PATH");
    return Error::Io(argv[0], ": cannot be run: ", std::strerror(error));
  }

  std::vector<Capture> captures;
  captures.push_back({std::move(out.read), &result.output, false});
  captures.push_back({std::move(err.read), &result.errors, true});
  if (!Follow(pid, captures, options, &status, &result.given_up))
    return Error::Io(argv[0], ": wrote more than ", kMaxOutput >> 20, " MiB and was stopped");
  result.exit_code = ExitCodeOf(status);
  return result;
}

std::string LastLines(const std::string& text, int lines) {
  std::vector<std::string_view> found;
  std::string_view rest = text;
  while (!rest.empty() && static_cast<int>(found.size()) < lines) {
    const size_t at = rest.rfind('\n');
    const std::string_view line = at == std::string_view::npos ? rest : rest.substr(at + 1);
    rest = at == std::string_view::npos ? std::string_view() : rest.substr(0, at);
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) found.push_back(line);
  }
  std::string joined;
  for (auto it = found.rbegin(); it != found.rend(); ++it)
    joined += (joined.empty() ? "" : " / ") + std::string(*it);
  return joined;
}

}  // namespace celer::cli
