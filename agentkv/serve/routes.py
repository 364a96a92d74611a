"""The tables of endpoints: which function answers at which path, of which models, and which body it reads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from starlette.responses import JSONResponse, Response

from .anthropic.messages import count_tokens, create_message
from .anthropic.messages_body import CountRequest, MessageRequest
from .branches import bodies as branch_bodies
from .branches import endpoints as branches
from .branches.leases import hold_lease
from .branches.snapshots import Publish, publish_branch, show_snapshot
from .branches.steering import steer_branch
from .http.errors import ApiError
from .http.middleware import MODELS
from .models import Models
from .openai.chat import create_chat_completion
from .openai.chat_body import ChatRequest
from .openai.completions import create_completion
from .openai.completions_body import CompletionRequest
from .openai.models import list_models, refuse_embeddings, show_model
from .openai.responses import create_response, delete_response, list_input_items, show_response
from .openai.responses_body import ResponsesRequest
from .server import Server
from .tokens import bodies as token_bodies
from .tokens import endpoints as tokens
from .tokens.tokenize import DetokenizeRequest, TokenizeRequest, detokenize, tokenize

if TYPE_CHECKING:
    from starlette.requests import Request

    from .http.body import Body


async def health(models: Models, request: Request) -> Response:
    """`GET /health`: 200 while requests are taken, 503 once the server stops."""
    draining = models.admission.draining
    return JSONResponse({"status": "stopping" if draining else "ok"}, 503 if draining else 200)


async def metrics(models: Models, request: Request) -> Response:
    """`GET /metrics`: counters in Prometheus' text format."""
    if MODELS in request.scope:
        raise ApiError("denied", "this key is for some models, and metrics tell of all of them", "key_of_some_models")
    return Response(models.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


Endpoint: TypeAlias = Callable[[Server, "Request"], Awaitable[Response]]
EndpointOfAll: TypeAlias = Callable[[Models, "Request"], Awaitable[Response]]

OF_ALL: Mapping[tuple[str, str], EndpointOfAll] = {
    ("GET", "/health"): health,
    ("GET", "/metrics"): metrics,
    ("GET", "/v1/models"): list_models,
    ("GET", "/v1/models/{model}"): show_model,
    ("POST", "/v1/embeddings"): refuse_embeddings,
    ("GET", "/v1/leases/{lease}"): hold_lease,
}
"""Endpoints that need no open model."""

OF_A_MODEL: Mapping[tuple[str, str], Endpoint] = {
    ("POST", "/v1/chat/completions"): create_chat_completion,
    ("POST", "/v1/completions"): create_completion,
    ("POST", "/v1/messages"): create_message,
    ("POST", "/v1/messages/count_tokens"): count_tokens,
    ("POST", "/tokenize"): tokenize,
    ("POST", "/detokenize"): detokenize,
    ("POST", "/v1/responses"): create_response,
    ("GET", "/v1/responses/{response}"): show_response,
    ("DELETE", "/v1/responses/{response}"): delete_response,
    ("GET", "/v1/responses/{response}/input_items"): list_input_items,
    ("GET", "/v1/branches"): branches.list_branches,
    ("POST", "/v1/branches"): branches.create_branch,
    ("GET", "/v1/branches/{branch}"): branches.show_branch,
    ("DELETE", "/v1/branches/{branch}"): branches.delete_branch,
    ("POST", "/v1/branches/{branch}/fork"): branches.fork_branch,
    ("POST", "/v1/branches/{branch}/extend"): branches.extend_branch,
    ("POST", "/v1/branches/{branch}/rollback"): branches.roll_back_branch,
    ("POST", "/v1/branches/{branch}/mark"): branches.mark_branch,
    ("POST", "/v1/branches/{branch}/adopt"): branches.adopt_branch,
    ("POST", "/v1/branches/{branch}/select"): branches.select_branch,
    ("POST", "/v1/branches/{branch}/generate"): branches.generate_on_branch,
    ("POST", "/v1/branches/{branch}/stop"): branches.stop_branch,
    ("POST", "/v1/branches/{branch}/steer"): steer_branch,
    ("GET", "/v1/branches/{branch}/snapshot"): show_snapshot,
    ("PUT", "/v1/branches/{branch}/snapshot"): publish_branch,
    ("GET", "/v1/tokens"): tokens.show_facts,
    ("GET", "/v1/tokens/tokenizer"): tokens.show_tokenizer,
    ("POST", "/v1/tokens"): tokens.generate_tokens,
    ("POST", "/v1/tokens/prefill"): tokens.prefill_tokens,
    ("POST", "/v1/tokens/logits"): tokens.logits_of_tokens,
    ("POST", "/v1/tokens/select"): tokens.select_tokens,
}

ENDPOINTS: Mapping[tuple[str, str], Endpoint | EndpointOfAll] = {**OF_ALL, **OF_A_MODEL}

BODIES: Mapping[Endpoint, type[Body]] = {
    create_chat_completion: ChatRequest,
    create_completion: CompletionRequest,
    create_message: MessageRequest,
    count_tokens: CountRequest,
    tokenize: TokenizeRequest,
    detokenize: DetokenizeRequest,
    create_response: ResponsesRequest,
    branches.create_branch: branch_bodies.Create,
    branches.fork_branch: branch_bodies.Fork,
    branches.extend_branch: branch_bodies.Extend,
    branches.roll_back_branch: branch_bodies.Rollback,
    branches.mark_branch: branch_bodies.MarkBody,
    branches.adopt_branch: branch_bodies.Adopt,
    branches.select_branch: branch_bodies.Select,
    branches.generate_on_branch: branch_bodies.Generate,
    branches.stop_branch: branch_bodies.StopBody,
    steer_branch: branch_bodies.SteerBody,
    publish_branch: Publish,
    tokens.generate_tokens: token_bodies.GenerateTokens,
    tokens.prefill_tokens: token_bodies.Prompt,
    tokens.logits_of_tokens: token_bodies.Prompt,
    tokens.select_tokens: token_bodies.SelectTokens,
}
