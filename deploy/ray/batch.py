"""A file of requests over a Ray cluster: OpenAI's batch format in, the same out, one line for each.

    python batch.py --model /models/qwen3-8b requests.jsonl answers.jsonl --workers 4 --gpus 1

A worker that dies is started again and its lines with it; a line whose custom_id is in the output already is left out, so a
run that was interrupted goes on when it is started again. Lines are written as they come, in any order.
"""
import argparse
import concurrent.futures
import http.client
import json
import pathlib
import threading
import time

import ray

from celer_process import CelerProcess

RETRIED = (408, 429, 500, 502, 503, 504)


class Worker:
    """One `celer serve`, which a batch of lines is sent to, many at once."""

    def __init__(self, settings):
        self.settings = settings
        self.lock = threading.Lock()
        self.server = None
        self.pool = concurrent.futures.ThreadPoolExecutor(settings["at_once"])

    def running(self):
        with self.lock:
            if self.server is None or self.server.process.poll() is not None:
                self.server = CelerProcess(self.settings["model"], self.settings["flags"].split(), self.settings["celer"])
            return self.server

    def post(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.running().port, timeout=3600)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read()), response.headers.get("Retry-After")
        finally:
            connection.close()

    def answer(self, line):
        """The line of the output. What a request does wrong is its answer; what the server does wrong is tried again."""
        try:
            query = json.loads(line)
            name, path, body = query["custom_id"], query["url"], query["body"]
        except (ValueError, KeyError, TypeError) as error:
            return json.dumps({"custom_id": None, "line": line[:200], "response": None,
                               "error": {"code": "bad_line", "message": f"no line of a batch: {type(error).__name__}: {error}"}})
        for attempt in range(self.settings["attempts"]):
            try:
                status, answer, after = self.post(path, body)
                if status not in RETRIED:
                    return json.dumps({"custom_id": name, "response": {"status_code": status, "body": answer}, "error": None})
                reason = f"status {status}"
            except (OSError, http.client.HTTPException, ValueError) as error:
                reason, after = f"{type(error).__name__}: {error}", None
            time.sleep(float(after) if after and after.isdigit() else min(0.1 * 2 ** attempt, 10))
        text = f"{self.settings['attempts']} attempts failed; the last one: {reason}"
        return json.dumps({"custom_id": name, "response": None, "error": {"code": "server_error", "message": text}})

    def __call__(self, batch):
        return {"text": list(self.pool.map(self.answer, batch["text"]))}


def answered(path):
    """The custom_ids that have an answer. Lines with an error, and half of one, leave the file: they are done again."""
    found = set()
    if not path.exists():
        return found
    kept = path.with_name(path.name + ".kept")
    with open(path, "rb") as lines, open(kept, "wb") as out:
        for line in lines:
            row = json.loads(line) if line.endswith(b"\n") else {"error": "cut"}
            if row["error"] is None:
                found.add(row["custom_id"])
                out.write(line)
    kept.replace(path)
    return found


def run(args):
    output = pathlib.Path(args.output)
    done = answered(output)
    settings = {name: getattr(args, name) for name in ("model", "flags", "celer", "at_once", "attempts")}

    def is_open(row):
        try:
            return json.loads(row["text"]).get("custom_id") not in done
        except (ValueError, AttributeError):
            return True

    lines = ray.data.read_text(str(pathlib.Path(args.input).resolve()), drop_empty_lines=True)
    if done:
        lines = lines.filter(is_open)
    # A worker that dies is replaced and its batch given out again; Ray's own defaults retry without end.
    answers = lines.repartition(target_num_rows_per_block=args.batch).map_batches(
        Worker, fn_constructor_args=(settings,), batch_size=args.batch, num_cpus=args.cpus, num_gpus=args.gpus,
        compute=ray.data.ActorPoolStrategy(size=args.workers), max_restarts=-1, max_task_retries=-1)
    count = failed = 0
    with open(output, "ab") as out:
        for batch in answers.iter_batches(batch_size=None, batch_format="numpy"):
            for text in batch["text"]:
                out.write(text.encode() + b"\n")
                count += 1
                failed += json.loads(text)["error"] is not None
            out.flush()
    print(f"{count} lines answered, {failed} of them with an error; {len(done)} were answered before")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", help="lines of {custom_id, method, url, body}")
    parser.add_argument("output")
    parser.add_argument("--model", required=True)
    parser.add_argument("--flags", default="", help="of celer serve, separated by blanks")
    parser.add_argument("--celer", default="celer", help="the program, on every node")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--cpus", type=float, default=1, help="of each worker")
    parser.add_argument("--gpus", type=float, default=0)
    parser.add_argument("--batch", type=int, default=256, help="lines that a worker is given at once, and does again if it dies")
    parser.add_argument("--at-once", type=int, default=64, help="requests in flight of one worker")
    parser.add_argument("--attempts", type=int, default=20, help="of one line, when its server fails")
    parser.add_argument("--address", help="of the cluster; else Ray's own rules")
    args = parser.parse_args()
    ray.init(address=args.address, runtime_env={"working_dir": str(pathlib.Path(__file__).resolve().parent)}, log_to_driver=False)
    raise SystemExit(run(args))


if __name__ == "__main__":
    main()
