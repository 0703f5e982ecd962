"""Typed parameters of a chapter: names, types, ranges, presets.

Values reach a chapter as text (from a shell), as whatever papermill guessed the text to be,
or as Python values typed in a notebook. All three end here and leave as one frozen model, or
as one line that says what was wrong and what is accepted. Nothing is converted by guessing:
text becomes a number, a truth value or a sequence only where the field declares one.
"""

import ast
import difflib
import json
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.fields import FieldInfo

from etlib.errors import ParameterError


class ChapterParameters(BaseModel):
    """Base of every chapter's parameters; subclass it and declare fields with ``Field``.

    A validator finds in its ``info.context["given"]`` the names that the reader gave.
    Strict: a truth value is no number, a number is no text, and NaN and infinities are
    refused unless a field says ``allow_inf_nan=True``. Declare sequences as tuples, which
    keeps the model immutable.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, values: dict[str, Any]) -> dict[str, Any]:
        fields = cls.model_fields
        return {
            name: _convert(value, fields[name].annotation) if name in fields else value
            for name, value in values.items()
        }


def resolve(
    chapter: str,
    presets: Mapping[str, ChapterParameters],
    given: Mapping[str, Any],
) -> tuple[str, ChapterParameters, dict[str, Any]]:
    """Return the preset's name, the checked parameters, and the checked overrides.

    ``given`` maps names to values or raw text and may hold ``preset``. ``None``, or the text
    "None", stands for the preset's own value.
    """
    model = type(presets["book"])
    names = ["preset", *model.model_fields]
    for name in given:
        if name not in names:
            raise ParameterError(
                f"unknown parameter {name!r} of chapter {chapter}{suggest(name, names)}"
            )
    given = {name: value for name, value in given.items() if not _is_none(value)}
    preset = given.pop("preset", "book")
    if preset not in presets:
        raise ParameterError(f"unknown preset {preset!r}{suggest(preset, presets)}")
    try:
        parameters = model.model_validate(
            presets[preset].model_dump() | given, context={"given": tuple(given)}
        )
    except ValidationError as error:
        raise ParameterError(_one_line(chapter, model, given, error)) from None
    return preset, parameters, {name: getattr(parameters, name) for name in given}


def suggest(name: Any, names: Any) -> str:
    """Return ": did you mean 'x'? There are: ..." for a name that is not among ``names``."""
    near = difflib.get_close_matches(str(name), list(names), n=1)
    hint = f": did you mean {near[0]!r}?" if near else "."
    return f"{hint} There are: {', '.join(names)}"


def accepted(field: FieldInfo) -> str:
    """Describe in words what a field takes, e.g. "a finite number > 0 or None"."""
    bounds = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    limits = [
        f"{sign} {getattr(item, key)}"
        for item in field.metadata
        for key, sign in bounds.items()
        if hasattr(item, key)
    ]
    finite = not any(getattr(item, "allow_inf_nan", False) for item in field.metadata)
    return _describe(field.annotation, " and ".join(limits), finite)


def _describe(annotation: Any, limits: str, finite: bool) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(item, limits, finite) for item in arguments)
    words = {
        bool: "true or false",
        int: "a whole number",
        float: "a finite number" if finite else "a number",
        str: "text",
        type(None): "None",
        tuple: "a list such as [1, 2]",
    }
    described = words[origin or annotation]
    return f"{described} {limits}" if limits and annotation in (int, float) else described


def _holds(annotation: Any, kind: type) -> bool:
    """Whether a type annotation admits values of ``kind``, alone or in a union."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return any(isinstance(item, kind) for item in arguments)
    if origin in (Union, types.UnionType):
        return any(_holds(item, kind) for item in arguments)
    return (origin or annotation) is kind


def _is_none(value: Any) -> bool:
    return value is None or value == "None"


def _convert(value: Any, annotation: Any) -> Any:
    if isinstance(value, str) and not _holds(annotation, str):
        value = _parse(value)
    if isinstance(value, list) and _holds(annotation, tuple):
        value = tuple(value)  # JSON and papermill know lists only
    return value


def _parse(text: str) -> Any:
    """Read text as a literal value; text that is none comes back unchanged, to be refused."""
    text = text.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for read in (int, float, json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError):
            continue
    return text


def _one_line(
    chapter: str, model: type[BaseModel], given: Mapping[str, Any], error: ValidationError
) -> str:
    lines = []
    for problem in error.errors():
        reason = problem["msg"].removeprefix("Value error, ")
        if not problem["loc"]:  # a rule about several parameters together
            lines.append(f"chapter {chapter}: {reason}")
            continue
        name = problem["loc"][0]
        value, field = given.get(name, problem["input"]), model.model_fields[name]
        takes = reason if problem["type"] == "value_error" else f"it takes {accepted(field)}"
        line = f"parameter {name!r} of chapter {chapter}: got {value!r}, but {takes}"
        if _holds(field.annotation, str) and not isinstance(value, str):
            line += f" (bare papermill turns text into numbers: pass it raw, -r {name} VALUE)"
        lines.append(line)
    return "; ".join(dict.fromkeys(lines))
