"""The parameters of a function as a JSON schema, and the check of arguments against them."""

from __future__ import annotations

import functools
import inspect
import json
import re
import typing
import warnings
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_args, get_origin

import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError
from pydantic.json_schema import JsonSchemaValue, PydanticJsonSchemaWarning
from pydantic_core import ErrorDetails, SchemaError

from .._types.errors import InvalidInput
from .._types.show import reason_of, safe_str
from ..output._typed import PlainSchema
from .run_context import RunContext

_ADVICE = re.compile(r"\. Set `arbitrary| For further information")  # pydantic's
_LONGEST = 300  # characters of a reason
_JSON_TYPES = "; take str, int, float, bool, list, dict, Literal, a dataclass, a TypedDict or a pydantic model"
_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class InvalidArguments(Exception):
    """Arguments that a tool does not take. The message names them and the reasons, in words for the model."""


class Parameters:
    """Parameters of a function that a model fills in.

    Attributes:
        schema: JSON schema of an object, for the tool's definition.
        takes_context: whether the first parameter of the function is the run context.
    """

    def __init__(
        self,
        model: type[BaseModel],
        names: Mapping[str, str],
        descriptions: Mapping[str, str],
        takes_context: bool,
    ) -> None:
        self._model = model
        self._names = names  # field of the model -> parameter
        self.takes_context = takes_context
        self.schema = _schema_of(model, descriptions)

    @classmethod
    def of(
        cls, function: Callable[..., Any], name: str, descriptions: Mapping[str, str], known: Mapping[str, Any]
    ) -> Parameters:
        """Reads the signature and its type hints, which may use the `known` names beside the module's.

        Raises InvalidInput for a parameter without a type hint or a JSON schema.
        """
        fields: dict[str, Any] = {}
        names: dict[str, str] = {}
        parameters, takes_context = _parameters(function, name, known)
        try:
            for index, (parameter, hint) in enumerate(parameters):
                default = ... if parameter.default is inspect.Parameter.empty else parameter.default
                # Fields have names of our own: those of parameters may be those of the model's methods.
                names[f"p{index}"] = parameter.name
                fields[f"p{index}"] = (Annotated[hint, Field(alias=parameter.name)], default)
            return cls(_model_of(fields), names, descriptions, takes_context)
        except Exception as error:  # pydantic's own, and any error of hints and their hooks
            which = next(
                (f"{each.name} of tool {name} has" for each, hint in parameters if not _has_schema(hint)), None
            )
            told = f"parameter {which}" if which else f"the parameters of tool {name} have"
            raise InvalidInput(f"{told} no JSON schema: {_why(error)}{_JSON_TYPES if which else ''}") from error

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Converts a model's arguments to those of the function. Raises InvalidArguments."""
        try:
            # As JSON: strict types take what JSON has for them.
            values = self._model.model_validate_json(json.dumps(dict(arguments)))
        except ValidationError as error:
            raise InvalidArguments("; ".join(map(_problem, error.errors(include_url=False)))) from None
        return {parameter: getattr(values, field) for field, parameter in self._names.items()}


def _model_of(fields: dict[str, Any]) -> type[BaseModel]:
    config = ConfigDict(extra="forbid")
    try:
        return create_model("Arguments", __config__=config, **fields)
    except SchemaError:  # Python's regular expressions can look around
        return create_model("Arguments", __config__=config | ConfigDict(regex_engine="python-re"), **fields)


def described(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Descriptions of a function and of its parameters, from a docstring in Google, NumPy or Sphinx style."""
    text = inspect.getdoc(function) or ""
    try:
        parsed = docstring_parser.parse(text)
    except docstring_parser.ParseError:
        return text, {}
    about = {item.arg_name: " ".join(item.description.split()) for item in parsed.params if item.description}
    return (parsed.description or "").strip(), about


def _parameters(
    function: Callable[..., Any], name: str, known: Mapping[str, Any]
) -> tuple[list[tuple[inspect.Parameter, Any]], bool]:
    """The parameters that the model fills in, with their hints, and whether a run context comes before them."""
    hints = _hints(function, known)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError) as error:
        raise InvalidInput(
            f"tool {name} has no signature to read: {error}; wrap it in a function that has one"
        ) from error
    takes_context = bool(parameters) and _is_context(hints.get(parameters[0].name))
    if takes_context:
        del parameters[0]
    for parameter in parameters:
        if parameter.kind not in _KINDS:
            raise InvalidInput(
                f"tool {name} has the parameter {parameter}, but models give arguments by name; name each"
            )
        if parameter.name not in hints:
            advice = "; to make a tool of a method, give the bound one: kv.tool(thing.method)"
            raise InvalidInput(
                f"parameter {parameter.name} of tool {name} has no type hint; the model needs its type"
                f"{advice if parameter.name == 'self' else ''}"
            )
        if any(_is_context(part) for part in (hints[parameter.name], *get_args(hints[parameter.name]))):
            raise InvalidInput(
                f"parameter {parameter.name} of tool {name} is a RunContext; make it the first parameter, and "
                "kv.RunContext its whole type"
            )
    return [(parameter, hints[parameter.name]) for parameter in parameters], takes_context


def _hints(function: Callable[..., Any], known: Mapping[str, Any]) -> dict[str, Any]:
    while isinstance(function, functools.partial):
        function = function.func
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return typing.get_type_hints(target, localns=dict(known), include_extras=True)
    except Exception as error:
        raise InvalidInput(f"the type hints of {target.__qualname__} cannot be read: {error}") from error


def _is_context(hint: object) -> bool:
    return hint is RunContext or get_origin(hint) is RunContext


class _Untitled(PlainSchema):
    """Schema generator without the titles that pydantic derives from names: they cost the model tokens."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _has_schema(hint: Any) -> bool:
    try:
        TypeAdapter(hint).json_schema()
    except Exception:
        return False
    return True


def _why(error: Exception) -> str:
    """The error in one line, without pydantic's advice on a model that is ours, and its words for what it builds."""
    if isinstance(error, PydanticSchemaGenerationError | PydanticInvalidForJsonSchema):
        return "JSON has nothing for its type"
    text = _ADVICE.split(" ".join(safe_str(error).split()))[0] or type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def _schema_of(model: type[BaseModel], descriptions: Mapping[str, str]) -> JsonSchemaValue:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PydanticJsonSchemaWarning)  # a default that is no JSON stays out
        schema = model.model_json_schema(schema_generator=_Untitled)
    for titled in (schema, *schema.get("$defs", {}).values()):
        titled.pop("title", None)
    for name, value in schema.setdefault("properties", {}).items():
        if name in descriptions:
            value.setdefault("description", descriptions[name])
    first = {key: schema[key] for key in ("type", "properties", "required") if key in schema}
    return first | schema


def _problem(error: ErrorDetails) -> str:
    where = ".".join(map(str, error["loc"]))
    return f"{where}: {reason_of(error)}" if where else reason_of(error)
