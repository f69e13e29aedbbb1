#!/usr/bin/env python3
"""Two servers behind the real nginx, and behind HAProxy where it is installed, with the configuration of deploy/:
balancer_test.py CELER. Conversations stay with the server that knows them; one server is killed, and the others' streams
go on."""
import pathlib
import signal
import sys
import threading
import time
import unittest

import fleet
from serving import ServerCase

CONVERSATIONS, TURNS = 24, 3


class BalancerCase(ServerCase):
    """What holds for every balancer; subclasses say how to start theirs."""

    @classmethod
    def setUpClass(cls):
        if cls is BalancerCase:
            raise unittest.SkipTest("the tests of the classes below")
        if not fleet.program(cls.name):
            raise unittest.SkipTest(f"{cls.name} is not installed")
        super().setUpClass()
        cls.servers = [cls.server, cls.start()]
        for _ in range(5):
            try:
                cls.proxy = cls.start_proxy(fleet.free_port())
                break
            except AssertionError as error:  # somebody else took the port
                last = error
        else:
            raise last
        cls.addClassCleanup(cls.proxy.stop)

    def talks(self, prefix, count=CONVERSATIONS):
        return [fleet.Conversation(f"{prefix}{i}", "You answer questions.", f"{prefix} number {i}") for i in range(count)]

    def whole(self, answers):
        self.assertEqual([answer.error for answer in answers if answer.error], [])
        self.assertTrue(all(answer.done and answer.finish == "length" for answer in answers))

    def homes(self, talks, answers):
        """The server of each conversation, which must be the same in all turns."""
        served = fleet.served_by(self.servers, answers)
        found = [{served[f"{talk.name}-{turn}"] for turn in range(talk.turns)} for talk in talks]
        self.assertTrue(all(len(home) == 1 for home in found), found)
        return [home.pop() for home in found]

    def at_home(self, prefix, each=6):
        """Conversations that have had their first turn, up to `each` of them with either server; with their servers and first
        answers."""
        talks = self.talks(prefix)
        answers = fleet.hold(self.proxy.url, talks, 1)
        self.whole(answers)
        homes = self.homes(talks, answers)
        self.assertEqual(set(homes), {0, 1})
        chosen = [i for home in (0, 1) for i in [i for i, one in enumerate(homes) if one == home][:each]]
        return [talks[i] for i in chosen], [homes[i] for i in chosen], [answers[i] for i in chosen]

    def test_1_conversations_stay_where_they_are_known(self):
        one = self.start()
        alone = fleet.hold(one.url, self.talks("warm"), TURNS)
        one.stop()
        self.whole(alone)
        talks = self.talks("warm")
        answers = fleet.hold(self.proxy.url, talks, TURNS)
        self.whole(answers)
        self.assertEqual([a.text for a in answers], [a.text for a in alone])
        self.assertEqual(set(self.homes(talks, answers)), {0, 1})
        ratio = fleet.hits(answers) / fleet.hits(alone)
        print(f"{self.name}: {fleet.hits(answers)} of {sum(a.prompt_tokens for a in answers)} prompt tokens were found; "
              f"one server would have found {fleet.hits(alone)}: {ratio:.3f}")
        self.assertGreaterEqual(ratio, 0.95)

    def test_2_what_has_not_begun_is_asked_elsewhere(self):
        """A server stands still with requests in its hands, then dies: the client hears nothing of it."""
        talks, homes, _ = self.at_home("early")
        victim = self.servers[1]
        victim.process.send_signal(signal.SIGSTOP)
        answers, threads = [], []
        for talk in talks:
            threads.append(threading.Thread(target=lambda one=talk: answers.append(one.ask(self.proxy.url))))
            threads[-1].start()
        # Those of the other server end; those of this one wait for it.
        for home, thread in zip(homes, threads):
            if home == 0:
                thread.join()
        victim.process.kill()
        for thread in threads:
            thread.join()
        self.whole(answers)
        self.bring_back(talks, homes)

    def test_3_a_killed_server_breaks_no_stream_but_its_own(self):
        talks, homes, first = self.at_home("long")
        asked = [talk.messages for talk in talks]
        alone = self.start()
        expected = [fleet.stream_chat(alone.url, messages, f"alone-{i}", max_tokens=600, ignore_eos=True).text
                    for i, messages in enumerate(asked)]
        alone.stop()

        answers = [None] * len(talks)
        begun = [threading.Event() for _ in talks]

        def listen(i):
            answers[i] = talks[i].ask(self.proxy.url, max_tokens=600, ignore_eos=True, on_first=begun[i].set)
            begun[i].set()

        threads = [threading.Thread(target=listen, args=(i,)) for i in range(len(talks))]
        for thread in threads:
            thread.start()
        for event in begun:
            event.wait()
        self.servers[1].process.kill()
        for thread in threads:
            thread.join()
        others = [i for i, home in enumerate(homes) if home == 0]
        own = [i for i, home in enumerate(homes) if home == 1]
        self.whole([answers[i] for i in others])
        self.assertEqual([answers[i].text for i in others], [expected[i] for i in others])
        cut = [i for i in own if not answers[i].done]
        for i in cut:  # what came of it was right
            self.assertTrue(expected[i].startswith(answers[i].text))
        print(f"{self.name}: {len(others)} streams of the server that lives are whole, {len(cut)} of {len(own)} of the killed one were cut")

        # They ask again, and one server answers all. The conversations that it had are as warm as before; the others come
        # cold once, and then are warm, too.
        again = [fleet.stream_chat(self.proxy.url, asked[i], f"again-{i}") for i in range(len(talks))]
        self.whole(again)
        for i in others:
            self.assertGreaterEqual(again[i].cached_tokens, first[i].prompt_tokens // 2)
        warm = [fleet.stream_chat(self.proxy.url, asked[i], f"warm-{i}") for i in own]
        self.whole(warm)
        for answer in warm:
            self.assertGreaterEqual(answer.cached_tokens, answer.prompt_tokens // 2)
        self.bring_back(talks, homes)

    def bring_back(self, talks, homes):
        """The killed server starts again on its port; its conversations return to it, and no other moves."""
        gone = self.servers[1]
        gone.kill()
        type(self).servers = [self.servers[0], self.start(port=gone.port)]
        # How soon the balancer notices is its affair: ask until one of the new server's conversations is there.
        own = [talk for talk, home in zip(talks, homes) if home == 1]
        end = time.monotonic() + 120
        while True:
            probe = fleet.stream_chat(self.proxy.url, own[0].messages, f"probe-{time.monotonic()}")
            self.whole([probe])
            if fleet.served_by(self.servers, [probe])[probe.request_id] == 1:
                break
            self.assertLess(time.monotonic(), end, "the server that came back gets no requests")
            time.sleep(0.2)
        for talk, home in zip(talks, homes):
            answer = talk.ask(self.proxy.url)
            self.whole([answer])
            self.assertEqual(fleet.served_by(self.servers, [answer])[answer.request_id], home)


class Nginx(BalancerCase):
    name = "nginx"

    @classmethod
    def start_proxy(cls, port):
        folder = cls.folder / "nginx"
        folder.mkdir(exist_ok=True)
        ports = [server.port for server in cls.servers]
        last = "    server 127.0.0.1:8002 max_fails=1 fail_timeout=5s;\n"
        (folder / "celer.conf").write_text(fleet.edited((fleet.DEPLOY / "nginx/celer.conf").read_text(), {
            last: "".join(last.replace("8002", str(one)) for one in ports[1:]), "127.0.0.1:8001": f"127.0.0.1:{ports[0]}",
            "listen 8000": f"listen 127.0.0.1:{port}", "/var/log/nginx/": f"{folder}/"}))
        kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        (folder / "nginx.conf").write_text(
            f"daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log;\n"
            "events {}\nhttp {\n" + "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds) +
            f"include {folder}/celer.conf;\n}}\n")
        return fleet.Proxy([fleet.program("nginx"), "-p", folder, "-e", folder / "start.log", "-c", folder / "nginx.conf"], port, folder / "out.log")


class HAProxy(BalancerCase):
    name = "haproxy"

    @classmethod
    def start_proxy(cls, port):
        env = {"CELER_BIND": f"127.0.0.1:{port}"}
        text = (fleet.DEPLOY / "haproxy/haproxy.cfg").read_text()
        for i, server in enumerate(cls.servers):
            env[f"CELER_{i}"] = f"127.0.0.1:{server.port}"
            if i > 1:
                text += f'    server celer-{i} "${{CELER_{i}}}"\n'
        config = cls.folder / "haproxy.cfg"
        config.write_text(text)
        return fleet.Proxy([fleet.program("haproxy"), "-f", config], port, cls.folder / "haproxy.log", env)


if __name__ == "__main__":
    ServerCase.celer = pathlib.Path(sys.argv.pop(1)).resolve()
    if not fleet.program("nginx") and not fleet.program("haproxy"):
        print("skipped: neither nginx nor HAProxy is installed; tools/setup.sh unpacks nginx")
        sys.exit(77)
    unittest.main()
