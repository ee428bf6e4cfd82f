"""What goes wrong in a way that a person has to act upon: an option, or data that is not there.

Spark shows the text of an exception and little else, and shows it far away from the line that
caused it. So each text is one sentence that can be acted upon by itself: it names the option, what
was given, and what would be right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.pipelines.source.loss import Loss


class OptionError(ValueError):
    """An option that cannot be followed; `option` is its name as the documentation spells it."""

    def __init__(self, option: str, sentence: str) -> None:
        super().__init__(sentence)
        self.option = option

    def __reduce__(self) -> tuple[type[OptionError], tuple[str, str]]:
        return type(self), (self.option, str(self))


class DataLossError(RuntimeError):
    """Records that were to be read are gone, and `failOnDataLoss` says to stop there."""

    def __init__(self, sentence: str, loss: Loss | None = None) -> None:
        super().__init__(sentence)
        self.loss = loss

    def __reduce__(self) -> tuple[type[DataLossError], tuple[str, Loss | None]]:
        return type(self), (str(self), self.loss)
