"""Serves one exported model on 127.0.0.1 in OpenAI's protocol: chat completions and completions, by the handlers of `transformers serve`.

Guarantee: a request is answered only if its Host is this machine's (else 400, dashboards/guard.py), its Origin none or this server's (403), and its
Authorization the bearer token of this start (401). No header for other origins is sent (CORS). Another model's name is refused, and nothing that a
request says loads, unloads or downloads a model: `transformers serve` itself would load any path that a request names (/load_model), so its
handlers are used without its other routes. The prompt has the ids of `loam chat`, and equal seeds give equal text, also when requests come
together. A parameter that would have no effect, or another one than OpenAI's, is refused.
Limit: one answer at a time; requests wait for each other. An answer ends at the end of the context, with `finish_reason` "length".
Cost: the model once in memory.
Source: transformers.cli.serving of transformers 5.23.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from dashboards.app import bound, run_server
from dashboards.guard import local_only
from stages.examples.items.chat import prompt_ids
from stages.questions.talk.conversation import prompt_of
from stages.questions.talk.sampling import LARGEST_SEED
from stages.questions.talk.written_answer import LoadedModel, seeded_generate
from stages.record.contract.errors import LoamError, RecipeError
from stages.record.processes import termination_raises

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from stages.questions.talk.exported_model import ExportedModel

EXTRA = "openai"
"""The package of the extra `serve` whose types the handlers answer in."""
Body = dict[str, JsonValue]
ALLOWED: Mapping[str, frozenset[str]] = {
    "chat": frozenset({"messages", "max_completion_tokens"}),
    "completion": frozenset({"prompt"}),
}
TAKEN = frozenset({"model", "stream", "temperature", "top_p", "seed", "max_tokens", "stop", "user", "metadata", "store", "stream_options"})
"""Fields of both kinds of request. The last four change no text; the usage always comes with the last chunk."""
WITHOUT_EFFECT: Mapping[str, tuple[JsonValue, ...]] = {
    "n": (1,), "best_of": (1,), "logprobs": (False, None, 0), "echo": (False,), "presence_penalty": (0,), "frequency_penalty": (0,), "logit_bias": ({},),
    "response_format": ({"type": "text"},), "suffix": ("",), "tools": ([],), "functions": ([],), "top_logprobs": (0,),
}  # fmt: skip
"""Fields that some clients always send -> the values that ask for nothing. null does, too."""


@dataclass(frozen=True)
class ServedModel:
    """Where a model is served. url: the base of the API. token: the bearer token. model: the name that requests give."""

    url: str
    token: str
    model: str


@dataclass(frozen=True)
class TokenCheck:
    """An ASGI application that passes on only requests of this server's own origin with the bearer token.

    Attributes:
        app: The application behind it.
        token: The secret.
    """

    app: ASGIApp
    token: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request with a refusal, or passes it on. A WebSocket is refused, because nothing here speaks to one."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        from starlette.requests import HTTPConnection

        headers = HTTPConnection(scope).headers
        given = headers.get("authorization", "").encode("utf-8", "surrogatepass")
        if headers.get("origin", f"http://{headers.get('host')}") != f"http://{headers.get('host')}":
            refusal = error_answer(HTTPStatus.FORBIDDEN, "Pages of other origins are not answered.")
        elif scope["type"] != "http":
            refusal = error_answer(HTTPStatus.FORBIDDEN, "There are no WebSockets here.")
        elif not secrets.compare_digest(given, f"Bearer {self.token}".encode()):
            refusal = error_answer(
                HTTPStatus.UNAUTHORIZED, "The header Authorization must be `Bearer TOKEN`, with the token that `loam serve-model` printed."
            )
        else:
            await self.app(scope, receive, send)
            return
        await refusal(scope, receive, send)


class PromptMaker:
    """Stands for the tokenizer in a handler: makes the ids of a prompt as `loam chat` does, and is the tokenizer in all else."""

    def __init__(self, loaded: LoadedModel) -> None:
        """Keeps the model."""
        self._loaded = loaded

    def __getattr__(self, name: str) -> Any:
        """Returns what the tokenizer has."""
        return getattr(self._loaded.tokenizer, name)

    def __call__(self, prompt: str, **named: object) -> Any:
        """Returns the opening of a document."""
        return self._batch(prompt_ids(prompt, self._loaded.form, chat=False))

    def apply_chat_template(self, messages: list[dict[str, str]], **named: object) -> Any:
        """Returns a chat that waits for an answer.

        Raises:
            RecipeError: The model is a base model, or its chat template refuses the chat.
        """
        if not self._loaded.found.chats:
            raise RecipeError(
                f"{self._loaded.found.alias} was not tuned on conversations.", do="Ask /v1/completions, or serve a tuned model."
            )
        return self._batch(prompt_of(messages, self._loaded.form))

    def _batch(self, ids: list[int]) -> Any:
        """Returns what a tokenizer returns.

        Raises:
            RecipeError: There is no room for an answer.
        """
        from transformers import BatchEncoding

        if len(ids) >= self._loaded.context:
            raise RecipeError(
                f"The prompt has {len(ids):,} tokens; the context of {self._loaded.found.alias} has {self._loaded.context:,}."
            )
        return BatchEncoding({"input_ids": [ids], "attention_mask": [[1] * len(ids)]}, tensor_type="pt")


def refuse_without_extra() -> None:
    """Refuses to serve without the packages of the extra.

    Raises:
        RecipeError: They are not installed.
    """
    if find_spec(EXTRA) is None:
        raise RecipeError(f"Serving a model needs the package {EXTRA}.", do="pip install -c constraints.txt -e '.[serve]'")


def make_app(loaded: LoadedModel, token: str) -> ASGIApp:
    """Returns the ASGI application. From here on, the model draws as its requests say."""
    from fastapi import FastAPI, HTTPException, Request

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    name = loaded.found.alias

    @app.get("/v1/models")
    def models() -> dict[str, JsonValue]:
        return {"object": "list", "data": [{"id": name, "object": "model", "created": 0, "owned_by": "loam"}]}

    @app.exception_handler(LoamError)
    async def refused(request: Request, error: LoamError) -> Response:
        return error_answer(HTTPStatus.BAD_REQUEST, f"{error.what} {error.do}".strip())

    @app.exception_handler(HTTPException)
    async def failed(request: Request, error: HTTPException) -> Response:
        return error_answer(error.status_code, str(error.detail))

    _add_handlers(app, loaded)
    return local_only(TokenCheck(app, token))


def _add_handlers(app: FastAPI, loaded: LoadedModel) -> None:
    """Adds the two routes that write text. The model is put where the handlers look for it, so they never load one."""
    from transformers.cli.serving.chat_completion import ChatCompletionHandler
    from transformers.cli.serving.completion import CompletionHandler
    from transformers.cli.serving.model_manager import ModelManager, TimedModel
    from transformers.cli.serving.utils import GenerationState

    name = loaded.found.alias
    manager, state = ModelManager(model_timeout=-1), GenerationState()
    manager.force_model = name
    manager.loaded_models[manager.process_model_name(name)] = TimedModel(loaded.model, -1, processor=PromptMaker(loaded))
    loaded.model.generation_config.update(do_sample=True, temperature=1.0, top_p=1.0, top_k=0)  # OpenAI's defaults
    loaded.model.generate = seeded_generate(loaded.model.generate, loaded.context)

    def add(path: str, kind: str, handler: type[Any]) -> None:
        class Seeding(handler):  # type: ignore[misc]
            def _build_generation_config(self, body: Body, *given: Any, **named: Any) -> Any:
                seed = body.pop("seed", None)
                config = super()._build_generation_config(body, *given, **named)
                config.seed = secrets.randbelow(LARGEST_SEED + 1) if seed is None else seed
                return config

        answering = Seeding(model_manager=manager, generation_state=state)

        @app.post(path)
        async def answered(body: Body) -> Any:
            return await answering.handle_request(checked(body, kind), f"{kind}-{uuid.uuid4().hex}")

    add("/v1/chat/completions", "chat", ChatCompletionHandler)
    add("/v1/completions", "completion", CompletionHandler)


def checked(body: Body, kind: str) -> Body:
    """Returns a request without the fields that ask for nothing.

    Args:
        body: The request.
        kind: A name of ALLOWED.

    Raises:
        RecipeError: A field has a value that would have no effect here, or that is not one of its values.
    """
    kept: Body = {name: value for name, value in body.items() if value is not None and value not in WITHOUT_EFFECT.get(name, ())}
    for name in kept.keys() - TAKEN - ALLOWED[kind]:
        raise RecipeError(f"The field {name[:60]} is not supported here.", do="Leave it out.")
    for name, low, high in (
        ("temperature", 0, 2),
        ("top_p", 0, 1),
        ("seed", 0, LARGEST_SEED),
        ("max_tokens", 1, None),
        ("max_completion_tokens", 1, None),
    ):
        value = kept.get(name, low)
        whole = name not in ("temperature", "top_p")
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not low <= value <= (high or value):
            raise RecipeError(f"{name} is not a {'whole ' * whole}number from {low}{f' to {high}' if high else ''}.")
    messages = kept.get("messages", [])
    if kind == "chat" and not (isinstance(messages, list) and messages and all(map(_is_message, messages))):
        raise RecipeError("messages is not a list of messages with a role (system, user or assistant) and a text as content.")
    return kept


def _is_message(value: JsonValue) -> bool:
    """Returns whether a message has a role and a text, or a list of texts."""
    if not isinstance(value, dict) or set(value) - {"role", "content", "name"} or value.get("role") not in ("system", "user", "assistant"):
        return False
    content = value.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    return all(isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str) for part in parts)


def error_answer(status: int, message: str) -> Response:
    """Returns an error as OpenAI's clients read it."""
    from starlette.responses import JSONResponse

    kind = "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
    return JSONResponse({"error": {"message": message, "type": kind, "param": None, "code": None}}, status_code=status)


def serve(found: ExportedModel, port: int, announce: Callable[[ServedModel], None]) -> None:
    """Serves a model until interrupted or terminated, and then returns. A port in use is refused before the model is loaded.

    Args:
        found: The model.
        port: The port of 127.0.0.1; 0 takes a free one.
        announce: Called once when the server is up.
    """
    import uvicorn

    from stages.questions.talk.written_answer import load

    token = secrets.token_urlsafe(32)
    with suppress(KeyboardInterrupt), termination_raises(KeyboardInterrupt), bound(port) as listener:
        app = make_app(load(found), token)
        listener.listen()
        announce(ServedModel(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", token, found.alias))
        run_server(uvicorn.Config(app, log_level="warning"), listener)
