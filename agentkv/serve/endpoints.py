"""What answers at which path, and what it reads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from starlette.responses import Response

from . import branch_request, token_requests
from . import branch_verbs as branches
from . import token_verbs as tokens
from .anthropic.count_tokens import count_tokens
from .anthropic.message_request import CountRequest, MessageRequest
from .anthropic.messages import create_message
from .leases import hold_lease
from .openai.chat import create_chat_completion
from .openai.chat_request import ChatRequest
from .openai.completion_request import CompletionRequest
from .openai.completions import create_completion
from .openai.embeddings import refuse_embeddings
from .openai.models import list_models, show_model
from .openai.responses import create_response
from .openai.responses_request import ResponsesRequest
from .openai.stored_responses import delete_response, list_input_items, show_response
from .plain import health, metrics
from .server import Server
from .snapshots import Publish, publish_branch, show_snapshot
from .tokenizing import DetokenizeRequest, TokenizeRequest, detokenize, tokenize

if TYPE_CHECKING:
    from starlette.requests import Request

    from .body import Body

Endpoint: TypeAlias = Callable[[Server, "Request"], Awaitable[Response]]

ENDPOINTS: Mapping[tuple[str, str], Endpoint] = {
    ("GET", "/health"): health,
    ("GET", "/metrics"): metrics,
    ("GET", "/v1/models"): list_models,
    ("GET", "/v1/models/{model}"): show_model,
    ("POST", "/v1/chat/completions"): create_chat_completion,
    ("POST", "/v1/completions"): create_completion,
    ("POST", "/v1/embeddings"): refuse_embeddings,
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
    ("GET", "/v1/branches/{branch}/snapshot"): show_snapshot,
    ("PUT", "/v1/branches/{branch}/snapshot"): publish_branch,
    ("GET", "/v1/leases/{lease}"): hold_lease,
    ("GET", "/v1/tokens"): tokens.show_facts,
    ("GET", "/v1/tokens/tokenizer"): tokens.show_tokenizer,
    ("POST", "/v1/tokens"): tokens.generate_tokens,
    ("POST", "/v1/tokens/prefill"): tokens.prefill_tokens,
    ("POST", "/v1/tokens/logits"): tokens.logits_of_tokens,
    ("POST", "/v1/tokens/select"): tokens.select_tokens,
}

BODIES: Mapping[Endpoint, type[Body]] = {
    create_chat_completion: ChatRequest,
    create_completion: CompletionRequest,
    create_message: MessageRequest,
    count_tokens: CountRequest,
    tokenize: TokenizeRequest,
    detokenize: DetokenizeRequest,
    create_response: ResponsesRequest,
    branches.create_branch: branch_request.Create,
    branches.fork_branch: branch_request.Fork,
    branches.extend_branch: branch_request.Extend,
    branches.roll_back_branch: branch_request.Rollback,
    branches.mark_branch: branch_request.Mark,
    branches.adopt_branch: branch_request.Adopt,
    branches.select_branch: branch_request.Select,
    branches.generate_on_branch: branch_request.Generate,
    branches.stop_branch: branch_request.Stop,
    publish_branch: Publish,
    tokens.generate_tokens: token_requests.GenerateTokens,
    tokens.prefill_tokens: token_requests.Prompt,
    tokens.logits_of_tokens: token_requests.Prompt,
    tokens.select_tokens: token_requests.SelectTokens,
}
