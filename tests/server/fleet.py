"""Several celer servers behind a balancer, and conversations that ask it."""
import concurrent.futures
import dataclasses
import http.client
import importlib.util
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import time
import urllib.parse

DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"
VENV = pathlib.Path(__file__).resolve().parents[2] / ".venv"


def _load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


resume = _load(DEPLOY.parent / "python/celer/resume.py")  # needs no extension module


def program(name):
    """Where a Debian program is: installed, or unpacked by tools/setup.sh without installing it. None: nowhere."""
    unpacked = VENV / "unpacked"
    folders = [os.environ.get("PATH", ""), "/usr/sbin", unpacked / "usr/sbin", unpacked / "usr/bin"]
    return shutil.which(name, path=os.pathsep.join(str(folder) for folder in folders))


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Proxy:
    """A balancer that was started by `command` and takes connections."""

    def __init__(self, command, port, log, env=None):
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.log = pathlib.Path(log)
        with open(log, "wb") as out:
            self.process = subprocess.Popen([str(part) for part in command], stdout=out, stderr=out, env={**os.environ, **(env or {})})
        end = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > end:
                    self.stop()
                    raise AssertionError(f"{command[0]} does not listen on port {port}: {self.log.read_text()}") from None
                time.sleep(0.05)

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def edited(text, changes):
    """The text with each change made; a change of something that is not there is an error."""
    for old, new in changes.items():
        if old not in text:
            raise AssertionError(f"there is no {old!r} to be replaced")
        text = text.replace(old, new)
    return text


@dataclasses.dataclass
class Answer:
    status: int
    request_id: str
    text: str = ""
    done: bool = False  # the stream ended as it should
    error: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    finish: str = ""
    retry_after: str = ""


def _ask(url, path, body, request_id):
    """A connection, and the answer so far."""
    place = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=300)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", "X-Request-Id": request_id})
    return connection


def _text_of(choice):
    """Of a conversation's answer or a completion, of a whole one or of a chunk."""
    if "text" in choice:
        return choice["text"]
    return choice.get("delta", choice.get("message", {})).get("content") or ""


def _streamed(url, path, body, request_id, on_first=None):
    """One streamed answer; never raises: `error` says what went wrong."""
    answer, connection = Answer(0, request_id), None
    try:
        connection = _ask(url, path, {**body, "stream": True, "stream_options": {"include_usage": True}}, request_id)
        response = connection.getresponse()
        answer.status, answer.retry_after = response.status, response.headers.get("Retry-After", "")
        if response.status != 200:
            answer.error = f"status {response.status}: {response.read(300)!r}"
            return answer
        for line in response:
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                answer.done = True
                continue
            frame = json.loads(line[6:])
            if "error" in frame:
                answer.error = f"error frame: {frame['error']}"
                continue
            for choice in frame.get("choices", []):
                answer.text += _text_of(choice)
                answer.finish = choice.get("finish_reason") or answer.finish
                if on_first and answer.text:
                    on_first()
                    on_first = None
            if usage := frame.get("usage"):
                answer.prompt_tokens = usage["prompt_tokens"]
                answer.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
        if not answer.done:
            answer.error = answer.error or "the stream ended without [DONE]"
    except (OSError, http.client.HTTPException, ValueError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    finally:
        if connection:
            connection.close()
    return answer


def _whole(url, path, body, request_id):
    """The same, not streamed."""
    answer, connection = Answer(0, request_id), None
    try:
        connection = _ask(url, path, body, request_id)
        response = connection.getresponse()
        answer.status, answer.retry_after = response.status, response.headers.get("Retry-After", "")
        data = response.read()
        if response.status != 200:
            answer.error = f"status {response.status}: {data[:300]!r}"
            return answer
        read = json.loads(data)
        choice, usage = read["choices"][0], read["usage"]
        answer.text, answer.finish, answer.done = _text_of(choice), choice["finish_reason"], True
        answer.prompt_tokens, answer.cached_tokens = usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    finally:
        if connection:
            connection.close()
    return answer


CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def stream_chat(url, messages, request_id, max_tokens=8, on_first=None, **params):
    return _streamed(url, CHAT, {"messages": messages, "max_tokens": max_tokens, "temperature": 0, **params}, request_id, on_first)


def whole_chat(url, messages, request_id, max_tokens=8, **params):
    return _whole(url, CHAT, {"messages": messages, "max_tokens": max_tokens, "temperature": 0, **params}, request_id)


def stream_completion(url, prompt, request_id, max_tokens=4, **params):
    return _streamed(url, COMPLETIONS, {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **params}, request_id)


def whole_completion(url, prompt, request_id, max_tokens=4, **params):
    return _whole(url, COMPLETIONS, {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **params}, request_id)


class Conversation:
    """Turns that grow. What the assistant said before is given, so that every run asks the very same."""

    def __init__(self, name, system, subject):
        self.name = name
        self.messages = [{"role": "system", "content": system}, {"role": "user", "content": f"Tell me about {subject}, please."}]
        self.turns = 0

    def ask(self, url, how=stream_chat, **params):
        answer = how(url, self.messages, f"{self.name}-{self.turns}", **params)
        self.turns += 1
        self.messages = [*self.messages, {"role": "assistant", "content": f"Here is part {self.turns} of what there is to say."},
                         {"role": "user", "content": f"And what comes after part {self.turns}? Go on, with every detail."}]
        return answer


def families(count, talks, words=40):
    """`count` families with a long system prompt each, and `talks` conversations in each of them."""
    return [Conversation(f"family{family}-talk{talk}", f"You are assistant number {family}. " + f"Rule {family} holds. " * words,
                         f"subject {talk} of family {family}")
            for talk in range(talks) for family in range(count)]


def hold(url, conversations, turns, at_once=4, **params):
    """All turns of all conversations, several at once, each conversation in its order. Returns the answers."""
    def one(conversation):
        return [conversation.ask(url, **params) for _ in range(turns)]
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        return [answer for answers in pool.map(one, conversations) for answer in answers]


def hits(answers):
    return sum(answer.cached_tokens for answer in answers)


def served_by(servers, answers, seconds=60):
    """Which server logged each of these requests: {request id: index}. A server writes its line after the answer."""
    wanted = {answer.request_id for answer in answers}
    end = time.monotonic() + seconds
    while True:
        found = {}
        for index, server in enumerate(servers):
            for request_id in re.findall(r" id=(\S+) .* status=200 ", server.log()):
                if request_id in wanted:
                    found[request_id] = index
        if len(found) == len(wanted) or time.monotonic() > end:
            return found
        time.sleep(0.05)
