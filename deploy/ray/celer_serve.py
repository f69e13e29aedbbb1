"""celer under Ray Serve: an HTTP ingress, and replicas that each run a `celer serve`, on any node that has the GPUs.

    serve run celer_serve:build model=/models/qwen3-8b gpus=1 min_replicas=2 max_replicas=8

or from a file (serve deploy), where the arguments are those of Settings. Conversations stay with the replica that has their
prefixes cached; replicas come and go with the number of requests in flight. docs/deploy.md has more.
"""
import asyncio
import hashlib
import json

import aiohttp
import pydantic
from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.request_router import LocalityMixin, MultiplexMixin, RequestRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse

from celer_process import CelerProcess

# Hop-by-hop headers are not forwarded.
HOP = {"connection", "content-length", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}


class Settings(pydantic.BaseModel, extra="forbid"):
    model: str
    flags: str = ""  # of celer serve, separated by blanks
    celer: str = "celer"  # the program, on every node
    gpus: float = 0  # of each replica
    cpus: float = 1
    min_replicas: int = 1
    max_replicas: int = 1
    per_node: int = 0  # replicas on one node at most; 0: any number
    target: float = 32  # requests in flight per replica that the autoscaler aims at
    limit: int = 256  # requests in flight of one replica; celer queues those that do not fit into its batch
    imbalance: int = 16  # so many requests more than the least busy replica, and a conversation goes elsewhere
    drain_seconds: float = 60


def affinity_key(headers, body, client=""):
    """What decides where a request goes; the order is that of deploy/nginx and deploy/haproxy."""
    if session := headers.get("x-session-id"):
        return session
    try:
        query = json.loads(body)
    except ValueError:
        return client
    if not isinstance(query, dict):
        return client
    if isinstance(key := query.get("prompt_cache_key"), str) and key:
        return key
    messages = query.get("messages")
    for message in messages if isinstance(messages, list) else []:
        if isinstance(message, dict) and message.get("role") == "user":
            return json.dumps(message.get("content"))
    text = query.get("prompt") or query.get("input")
    return json.dumps(text)[:256] if text else client


class ConversationRouter(LocalityMixin, MultiplexMixin, RequestRouter):
    """Rendezvous hashing: every ingress chooses alike, and a replica that comes or goes moves only its own share."""

    def initialize_state(self, imbalance=16):
        self.imbalance = imbalance

    async def choose_replicas(self, candidate_replicas, pending_request=None):
        if pending_request is None or not pending_request.args:
            return [list(candidate_replicas)]
        key = str(pending_request.args[0])

        def weight(replica):
            return hashlib.blake2b(f"{replica.replica_id.unique_id} {key}".encode(), digest_size=8).digest()

        def queue(replica):
            return self.replica_queue_len_cache.get(replica.replica_id) or 0

        ranked = sorted(candidate_replicas, key=weight, reverse=True)
        if ranked and queue(ranked[0]) > self.imbalance + min(map(queue, ranked)):
            ranked.sort(key=queue)
        return [[replica] for replica in ranked]  # each is tried when those before it take no more


class CelerReplica:
    def __init__(self, settings):
        self.settings = Settings(**settings)
        # Ray has set CUDA_VISIBLE_DEVICES for this actor, and the server inherits it.
        self.server = CelerProcess(self.settings.model, self.settings.flags.split(), self.settings.celer)
        self.name = serve.get_replica_context().replica_id.unique_id
        self.session = None

    async def forward(self, key, method, path, headers, body):
        """The status and the headers, then the body as it comes."""
        if self.session is None:
            self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False,
                                                 connector=aiohttp.TCPConnector(limit=0))
        async with self.session.request(method, self.server.url + path, headers=headers, data=body) as response:
            yield response.status, {**{name: value for name, value in response.headers.items() if name.lower() not in HOP},
                                    "X-Celer-Replica": self.name}
            async for data in response.content.iter_any():
                yield data

    async def check_health(self):
        """A server that died or lost its device: Ray replaces the replica."""
        if not await asyncio.to_thread(self.server.healthy, "/health/live"):
            raise RuntimeError("celer serve does not answer")

    def __del__(self):
        if hasattr(self, "server"):
            self.server.stop(self.settings.drain_seconds)


class Ingress:
    def __init__(self, replicas):
        self.replicas = replicas.options(stream=True)

    async def __call__(self, request: Request):
        body = await request.body()
        headers = {name: value for name, value in request.headers.items() if name not in HOP}
        client = request.client.host if request.client else ""
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        parts = self.replicas.forward.remote(affinity_key(headers, body, client), request.method, path, headers, body)
        try:
            status, told = await anext(aiter(parts))
        except Exception as error:  # the replica died: nothing has been said, so any other may answer
            text = f"no replica answered: {type(error).__name__}"
            return JSONResponse({"error": {"message": text, "type": "server_error", "param": None, "code": "no_replica"}}, 503,
                                {"Retry-After": "1"})

        async def rest():
            try:
                async for data in parts:
                    yield data
            finally:
                parts.cancel()  # the client may have gone

        return StreamingResponse(rest(), status, told)


def build(settings: Settings):
    """The application, for `serve run` and serve.run()."""
    options = {"max_replicas_per_node": settings.per_node} if settings.per_node else {}
    replicas = serve.deployment(
        CelerReplica,
        ray_actor_options={"num_gpus": settings.gpus, "num_cpus": settings.cpus},
        autoscaling_config=AutoscalingConfig(min_replicas=settings.min_replicas, max_replicas=settings.max_replicas,
                                             target_ongoing_requests=settings.target),
        request_router_config=RequestRouterConfig(request_router_class=ConversationRouter,
                                                  request_router_kwargs={"imbalance": settings.imbalance}),
        max_ongoing_requests=settings.limit,
        graceful_shutdown_timeout_s=settings.drain_seconds,
        health_check_period_s=2,
        **options,
    ).bind(settings.model_dump())
    ingress = serve.deployment(Ingress, ray_actor_options={"num_cpus": 0.1}, max_ongoing_requests=10_000,
                               graceful_shutdown_timeout_s=settings.drain_seconds)
    return ingress.bind(replicas)
