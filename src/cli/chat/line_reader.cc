#include "cli/chat/line_reader.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <cwchar>
#include <iostream>
#include <string_view>
#include <system_error>

#if CELER_WITH_EDITLINE
#include <histedit.h>
#include <langinfo.h>
#endif

#include "cli/shared/interrupt.h"
#include "io/file/atomic_file.h"
#include "io/json/json.h"
#include "report/output.h"

namespace celer::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kHistoryLines = 1000;
constexpr size_t kMaxHistoryBytes = size_t{16} << 20;
constexpr mode_t kOwnerOnly = 0600;

}  // namespace

std::vector<std::string> LoadHistory(const fs::path& path) {
  std::vector<std::string> lines;
  const auto text = ReadTextFile(path, kMaxHistoryBytes);
  if (!text) return lines;
  for (size_t from = 0; from < text->size();) {
    const size_t end = std::min(text->find('\n', from), text->size());
    if (end > from) lines.push_back(text->substr(from, end - from));
    from = end + 1;
  }
  if (lines.size() <= kHistoryLines) return lines;
  const bool cut_down = lines.size() > 2 * kHistoryLines;
  lines.erase(lines.begin(), lines.end() - kHistoryLines);
  if (cut_down) {
    std::string kept;
    for (const std::string& line : lines) kept += line + "\n";
    (void)WriteWholeFile(path, kept);  // with the permissions that it has; the next time will do as well
  }
  return lines;
}

void AppendHistory(const fs::path& path, const std::string& line) {
  std::error_code ignored;
  fs::create_directories(path.parent_path(), ignored);
  const std::string text = line + "\n";
  const auto fd = OpenToAppend(path, kOwnerOnly);
  if (!fd) return;
  // One write, so that lines of two conversations do not mix. A lost line is no reason to stop a
  // conversation.
  if (::fchmod(*fd, kOwnerOnly) == 0 && ::write(*fd, text.data(), text.size()) < 0) errno = 0;
  ::close(*fd);
}

#if CELER_WITH_EDITLINE

namespace {

// libedit works with wide characters; without UTF-8 it would take one letter for several.
bool UseUtf8() {
  const auto is_utf8 = [] { return std::string_view(nl_langinfo(CODESET)) == "UTF-8"; };
  if (std::setlocale(LC_CTYPE, "") && is_utf8()) return true;
  return std::setlocale(LC_CTYPE, "C.UTF-8") && is_utf8();
}

// Only there to make a wait return: the terminal may be another size, or another program's modes.
void OnChange(int) {}

}  // namespace

class LineReader::Editor {
 public:
  explicit Editor(fs::path history_file) : file_(std::move(history_file)) {
    editor_ = el_init("celer", stdin, stderr, stderr);
    history_ = history_init();
    if (!editor_ || !history_) return;
    HistEvent event;
    history(history_, &event, H_SETSIZE, static_cast<int>(kHistoryLines));
    history(history_, &event, H_SETUNIQUE, 1);
    if (!file_.empty())
      for (const std::string& line : LoadHistory(file_)) history(history_, &event, H_ENTER, line.c_str());
    el_set(editor_, EL_CLIENTDATA, this);
    el_set(editor_, EL_PROMPT, Prompt);
    el_set(editor_, EL_EDITOR, "emacs");
    el_set(editor_, EL_HIST, history, history_);
    el_set(editor_, EL_GETCFN, GetCharacter);
    constexpr const char* kKeys[][2] = {
        {"^R", "em-inc-search-prev"}, {"^W", "ed-delete-prev-word"}, {"\\e[3~", "ed-delete-next-char"},
        {"\\e[H", "ed-move-to-beg"},  {"\\eOH", "ed-move-to-beg"},   {"\\e[1~", "ed-move-to-beg"},
        {"\\e[F", "ed-move-to-end"},  {"\\eOF", "ed-move-to-end"},   {"\\e[4~", "ed-move-to-end"},
        {"\\e[1;5D", "ed-prev-word"}, {"\\e[1;5C", "em-next-word"}};
    for (const auto& [key, command] : kKeys) el_set(editor_, EL_BIND, key, command, nullptr);
    el_source(editor_, nullptr);  // what the user set up in ~/.editrc
  }
  ~Editor() {
    if (history_) history_end(history_);
    if (editor_) el_end(editor_);
  }
  Editor(const Editor&) = delete;
  Editor& operator=(const Editor&) = delete;

  bool usable() const { return editor_ && history_; }

  Outcome Read(const char* prompt, std::string* line) {
    prompt_ = prompt;
    something_typed_ = false;
    const ChangeGuard guard(&outside_);
    el_resize(editor_);
    int count = 0;
    const char* text = el_gets(editor_, &count);
    if (!text || count <= 0) {
      if (InterruptGuard::Pending()) return something_typed_ ? Outcome::kDiscarded : Outcome::kInterrupted;
      return Outcome::kEnd;
    }
    line->assign(text, count);
    while (!line->empty() && (line->back() == '\n' || line->back() == '\r')) line->pop_back();
    Remember(*line);
    return Outcome::kLine;
  }

 private:
  // While a line is read, Ctrl-C comes in only where it is waited for, and changes of the terminal end the
  // wait.
  class ChangeGuard {
   public:
    explicit ChangeGuard(sigset_t* outside) : outside_(outside) {
      struct sigaction action = {};
      action.sa_handler = OnChange;
      sigaction(SIGWINCH, &action, &window_);
      sigaction(SIGCONT, &action, &resume_);
      sigset_t inside;
      sigemptyset(&inside);
      for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGWINCH, SIGCONT}) sigaddset(&inside, signal);
      sigprocmask(SIG_BLOCK, &inside, outside);
    }
    ~ChangeGuard() {
      sigprocmask(SIG_SETMASK, outside_, nullptr);
      sigaction(SIGWINCH, &window_, nullptr);
      sigaction(SIGCONT, &resume_, nullptr);
    }

   private:
    sigset_t* outside_;
    struct sigaction window_, resume_;
  };

  static Editor* Of(EditLine* editor) {
    void* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return static_cast<Editor*>(self);
  }

  static char* Prompt(EditLine* editor) { return const_cast<char*>(Of(editor)->prompt_); }

  // 1: a character; 0: the end; -1: interrupted. libedit's own goes on reading after a Ctrl-C.
  static int GetCharacter(EditLine* editor, wchar_t* character) {
    Editor* self = Of(editor);
    std::mbstate_t state = {};
    while (true) {
      pollfd input = {STDIN_FILENO, POLLIN, 0};
      if (::ppoll(&input, 1, nullptr, &self->outside_) < 0) {
        if (errno != EINTR) return -1;
        if (InterruptGuard::Pending()) {
          const LineInfo* line = el_line(editor);
          self->something_typed_ = line->lastchar > line->buffer;
          return -1;
        }
        el_set(editor, EL_PREP_TERM, 1);
        el_resize(editor);
        el_set(editor, EL_REFRESH);
        continue;
      }
      char byte = 0;
      const ssize_t got = ::read(STDIN_FILENO, &byte, 1);
      if (got <= 0) return static_cast<int>(got);
      const size_t used = std::mbrtowc(character, &byte, 1, &state);
      if (used == static_cast<size_t>(-2)) continue;  // the rest of the character is still to come
      if (used == static_cast<size_t>(-1)) *character = L'\ufffd';
      return 1;
    }
  }

  void Remember(const std::string& line) {
    if (line.find_first_not_of(" \t\\") == std::string::npos || line == last_) return;
    last_ = line;
    HistEvent event;
    history(history_, &event, H_ENTER, line.c_str());
    if (!file_.empty()) AppendHistory(file_, line);
  }

  fs::path file_;
  EditLine* editor_ = nullptr;
  History* history_ = nullptr;
  const char* prompt_ = "";
  bool something_typed_ = false;
  sigset_t outside_ = {};
  std::string last_;
};

#else

class LineReader::Editor {};

#endif

LineReader::LineReader([[maybe_unused]] const fs::path& history) : terminal_(::isatty(STDIN_FILENO) != 0) {
#if CELER_WITH_EDITLINE
  const char* term = std::getenv("TERM");
  if (!terminal_ || !::isatty(STDERR_FILENO) || !term || !*term || std::string_view(term) == "dumb") return;
  if (!UseUtf8()) return;
  editor_ = std::make_unique<Editor>(history);
  if (!editor_->usable()) editor_.reset();
#endif
}

LineReader::~LineReader() = default;

bool LineReader::CanEdit() {
  return CELER_WITH_EDITLINE;
}

LineReader::Outcome LineReader::Read(const char* prompt, std::string* line) {
#if CELER_WITH_EDITLINE
  if (editor_) return editor_->Read(prompt, line);
#endif
  return ReadPlain(prompt, line);
}

LineReader::Outcome LineReader::ReadPlain(const char* prompt, std::string* line) const {
  if (terminal_) Say("{}", prompt);
  if (std::getline(std::cin, *line)) return Outcome::kLine;
  std::cin.clear();
  std::clearerr(stdin);
  return InterruptGuard::Pending() ? Outcome::kInterrupted : Outcome::kEnd;
}

}  // namespace celer::cli
