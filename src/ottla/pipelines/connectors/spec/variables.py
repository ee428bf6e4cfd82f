"""Variables of a pipeline's file, replaced after it was parsed, in scalars only.

    ${NAME}             of the environment
    ${NAME:-text}       the same, or the text if there is none
    ${file:PATH}        the whole file, without the newline at its end
    $${                 these two characters as they are

A value cannot change the shape of the file, whatever it holds: it becomes text inside one scalar.
It is taken for a secret: it is remembered, and `scrubbed` removes it from what is printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from ottla.pipelines.connectors.spec.tree import Node, Problem

HIDDEN_VALUE: Final = "***"
_VARIABLE: Final = re.compile(r"\$\$\{|\$\{([^}]*)\}|\$\{")
_NAME: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_FILE: Final = "file:"
_SHORTEST: Final = 4
"""A shorter value is no secret, and would be found in every other word."""
_PASSWORD: Final = re.compile(
    r"(?:^|[\s;&?])(?:password|passwd|pwd)\s*=\s*('[^']*'|[^\s;&]+)", re.I
)

_IN_ADDRESS: Final = re.compile(r"://[^:/?#@]*:(\S*)@")
"""Up to the last @: a password may hold any sign, encoded or not."""


class Variables:
    """Replaces; `problems` and `secrets` grow meanwhile.

    folder   what the paths of `${file:…}` are relative to
    """

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self._environment = environment
        self._folder = folder
        self.problems: list[Problem] = []
        self.secrets: set[str] = set()

    def replaced(self, node: Node) -> Node:
        """The same tree with values in it."""
        if isinstance(node.value, dict):
            inner = {key: self.replaced(each) for key, each in node.value.items()}
            return replace(node, value=inner)
        if isinstance(node.value, list):
            return replace(node, value=[self.replaced(each) for each in node.value])
        if not isinstance(node.value, str) or "${" not in node.value:
            return node
        found = False

        def value_of(match: re.Match[str]) -> str:
            nonlocal found
            if match[0] == "$${":
                return "${"
            found = True
            if match[1] is None:
                self.problems.append(node.problem("${ is not closed; $${ writes it as it is"))
                return ""
            return self._value(node, match[1])

        value = _VARIABLE.sub(value_of, node.value)
        return replace(node, value=value, replaced=found)

    def _value(self, node: Node, inner: str) -> str:
        if inner.startswith(_FILE):
            return self._file(node, inner.removeprefix(_FILE))
        name = _NAME.fullmatch(inner)
        if name is None:
            sentence = f"${{{inner}}} is no variable: ${{NAME}}, ${{NAME:-text}} or ${{file:PATH}}"
            self.problems.append(node.problem(sentence))
            return ""
        value = self._environment.get(name[1])
        if value is None:
            if name[2] is None:
                sentence = f"the environment has no variable {name[1]}; set it, or give a text for "
                sentence += f"when there is none: ${{{name[1]}:-text}}"
                self.problems.append(node.problem(sentence))
            return name[2] or ""
        self._remember(value)
        return value

    def _file(self, node: Node, path: str) -> str:
        try:
            value = (self._folder / path).read_text(encoding="utf-8").removesuffix("\n")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
            self.problems.append(node.problem(f"the file {path} cannot be read: {why}"))
            return ""
        self._remember(value)
        return value

    def _remember(self, value: str) -> None:
        self.secrets.update(secrets_in(value))


def secrets_in(value: str) -> set[str]:
    """What must not be printed of a value: itself, and a password inside it."""
    # A line break at its end would be shown as \n, and hide it from `scrubbed`.
    found = {value, value.strip(), *_PASSWORD.findall(value)}
    for password in _IN_ADDRESS.findall(value):
        found |= {password, unquote(password)}
    return {each.strip("'") for each in found if len(each.strip("'")) >= _SHORTEST}


def scrubbed(text: str, secrets: Iterable[str]) -> str:
    """The text without any of these values."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN_VALUE)
    return text
