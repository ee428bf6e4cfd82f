"""CRC-32C (Castagnoli), which covers a batch from its attributes to its end.

The door to the `crc32c` package: it uses the processor's instruction and takes any buffer without
copying (38 microseconds for 1 MB). Its extension module is loaded without the package around it,
where that works: the package reads its own version when it is imported, and the standard library's
way of doing so (e-mail headers, zip files) takes a twentieth of a broker's whole start.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    Checksum = Callable[[ReadableBuffer, int], int]


def _from_extension() -> Checksum | None:
    package = PathFinder.find_spec("crc32c")
    if package is None or package.submodule_search_locations is None:
        return None
    spec = PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
    if spec is None or spec.loader is None:
        return None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Checksum | None = getattr(module, "crc32c", None)
    return found


def _from_package() -> Checksum:
    from crc32c import crc32c

    return crc32c


_crc32c = _from_extension() or _from_package()


def crc32c(data: ReadableBuffer, initial: int = 0) -> int:
    """The checksum of `data`; pass an earlier result as `initial` to continue it."""
    return _crc32c(data, initial)
