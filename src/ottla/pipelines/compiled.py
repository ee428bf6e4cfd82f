"""Loops as machine code: compiled with numba once, loaded without it from then on.

    LIBRARY = Library("ottla.pipelines.sink.loops", {"sort_by_lane": (LONGS, WRITTEN_LONGS)})
    loops = LIBRARY.load()
    status = loops["sort_by_lane"](lanes, order)

A worker of Spark is a new process, and in one that writes a few rows the import of numba and of
what it keeps on disk is most of the work: 0.3 s. What it makes of a loop over arrays of numbers
needs nothing of it at run time, so the object code is kept by itself, a file of some kilobytes for
each module, and linked by LLVM (llvmlite, which numba brings) in a tenth of that time.

The module has the loops under their names in what its `to_compile()` returns, plain functions of
arrays and numbers that give back a number. They must not raise, allocate, or call into Python: what
is left of numba in the object code is an error here, not a crash later.

A file is used if it was made from the same sources, by the same numba and llvmlite, for the same
Python and processor, and is whole; else it is made anew. It is written beside the module, as Python
keeps its own, or in the user's cache folder where that cannot be written. NUMBA_CACHE_DIR names
another place, which then comes first.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from ottla.pipelines.loop import Array, Loop, Parameters

log = logging.getLogger(__name__)

_PREFIX: Final = "ottla_"
# Of the C library: LLVM makes loops that copy into calls of these.
_KNOWN: Final = frozenset({"memcpy", "memmove", "memset"})
_MAKERS: Final = (__name__, "ottla.pipelines.loop")
_DIGEST: Final = hashlib.sha256().digest_size


class Library:
    """The loops of one module. Making one does nothing; it is loaded when it is first needed.

    imported  modules whose constants are in the loops too
    """

    def __init__(
        self, module: str, loops: Mapping[str, Parameters], *, imported: tuple[str, ...] = ()
    ) -> None:
        self._module = module
        self._sources = (module, *imported)
        self._loops = loops
        self._lock = threading.Lock()
        self._loaded: dict[str, Loop] | None = None

    def load(self) -> Mapping[str, Loop]:
        """The loops by name. ImportError where there is no numba."""
        with self._lock:
            if self._loaded is None:
                target = _Target()
                engine = _link(self._code(target), target)
                self._loaded = {
                    name: Loop(engine.get_function_address(_PREFIX + name), parameters, engine)
                    for name, parameters in self._loops.items()
                }
            return self._loaded

    def packed(self) -> tuple[str, bytes]:
        """The file, made if need be: its path as seen from where the packages are, its content."""
        target = _Target()
        code = self._code(target)
        package = self._module.rpartition(".")[0].replace(".", "/")
        return f"{package}/__pycache__/{self._name(target)}", _content(self._key(target), code)

    def _code(self, target: _Target) -> bytes:
        """The object code: kept from an earlier time, or made now."""
        key = self._key(target)
        places = self._places(target)
        for place in places:
            code = _read(place, key)
            if code is not None:
                return code
        begin = time.perf_counter()
        code = _compile(self._module, self._loops, target)
        log.info("compiled %s in %.1f s", self._module, time.perf_counter() - begin)
        reasons = []
        for place in places:
            try:
                _write(place, key, code)
            except OSError as error:
                reasons.append(str(error))
            else:
                return code
        log.warning(
            "%s is compiled anew by each worker, for want of a cache: %s",
            self._module,
            "; ".join(reasons),
        )
        return code

    def _key(self, target: _Target) -> bytes:
        """All that the code depends on, in short."""
        parts = [_source(each).read_bytes() for each in (*self._sources, *_MAKERS)]
        parts += [text.encode() for text in (repr(self._loops), *target.described)]
        return hashlib.sha256(b"".join(b"%d:%b" % (len(part), part) for part in parts)).digest()

    def _name(self, target: _Target) -> str:
        return f"{self._module}.{sys.implementation.cache_tag}-{target.short}.o"

    def _places(self, target: _Target) -> list[Path]:
        """Where the file may be, the best place first."""
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        folders = [
            os.environ.get("NUMBA_CACHE_DIR"),
            _source(self._module).parent / "__pycache__",
            # Not absolute for a user who has no home, as in some containers.
            Path(cache) / "ottla" if os.path.isabs(cache) else None,
        ]
        return [Path(folder) / self._name(target) for folder in folders if folder]


class _Target:
    """What machine code is made for, and by what."""

    def __init__(self) -> None:
        numba = find_spec("numba")
        if numba is None or numba.origin is None:
            raise ImportError("numba is not installed (pip install numba)", name="numba")
        import llvmlite
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.cpu = llvm.get_host_cpu_name()
        self.features = llvm.get_host_cpu_features().flatten()
        # As in the name of its folder of metadata: to ask for it takes longer than all of this.
        installed = Path(numba.origin).parent.parent.glob("numba-*.dist-info")
        versions = (llvmlite.__version__, *sorted(each.name for each in installed))
        python = str(sys.implementation.cache_tag)
        triple = llvm.get_process_triple()
        self.described = (*versions, python, triple, self.cpu, self.features)

    @property
    def short(self) -> str:
        """One word for the processor: machines with different ones may share a folder."""
        text = f"{self.cpu} {self.features}"
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def machine(self) -> Any:
        import llvmlite.binding as llvm

        return llvm.Target.from_default_triple().create_target_machine(
            cpu=self.cpu, features=self.features, opt=3, codemodel="jitdefault", jit=True
        )


# -- files


def _source(module: str) -> Path:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{module} is not there", name=module)
    return Path(spec.origin)


def _content(key: bytes, code: bytes) -> bytes:
    return key + hashlib.sha256(code).digest() + code


def _read(place: Path, key: bytes) -> bytes | None:
    """The code that is kept there, if it is whole and of this key."""
    try:
        content = place.read_bytes()
    except OSError:
        return None
    code = content[2 * _DIGEST :]
    return code if code and content == _content(key, code) else None


def _write(place: Path, key: bytes, code: bytes) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all: other workers write the same, and read it, at this moment.
    with tempfile.NamedTemporaryFile(dir=place.parent, delete=False) as file:
        try:
            file.write(_content(key, code))
            file.close()
            os.chmod(file.name, 0o644)
            os.replace(file.name, place)
        except OSError:
            os.unlink(file.name)
            raise


# -- machine code


def _compile(module: str, loops: Mapping[str, Parameters], target: _Target) -> bytes:
    """The object code of the loops, which needs nothing but the C library."""
    import llvmlite.binding as llvm

    functions = import_module(module).to_compile()
    whole: Any = None
    for name, parameters in loops.items():
        entry = _entry(functions[name], parameters)
        part = llvm.parse_assembly(entry.inspect_llvm())
        part.get_function(entry.native_name).name = _PREFIX + name
        if whole is None:
            whole = part
        else:
            whole.link_in(part)
    # numba's functions may raise, and ours do not. Seen as one program with a few ways in, that
    # becomes plain to LLVM, which leaves out what nothing leads to.
    for each in (*whole.functions, *whole.global_variables):
        if not each.is_declaration and not each.name.startswith(_PREFIX):
            each.linkage = "internal"
    machine = target.machine()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(whole, passes)
    needed = {
        each.name
        for each in (*whole.functions, *whole.global_variables)
        if each.is_declaration and not each.name.startswith("llvm.")
    } - _KNOWN
    if needed:
        raise RuntimeError(f"the loops of {module} need {', '.join(sorted(needed))}")
    code: bytes = machine.emit_object(whole)
    return code


def _entry(function: Callable[..., int], parameters: Parameters) -> Any:
    """A C function that takes a frame (see `loop`), for LLVM."""
    import numba
    from numba.extending import intrinsic

    def as_pointer(_: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = context.get_value_type(signature.return_type)
            return builder.inttoptr(arguments[0], kind)

        return numba.types.voidptr(numba.int64), generate

    # Written as text: numba takes no function whose number of arguments is open.
    scope: dict[str, Any] = {
        "carray": numba.carray,  # type: ignore[attr-defined]
        "pointer": intrinsic(as_pointer),
        "function": numba.njit(error_model="numpy")(function),
    }
    given: list[str] = []
    at = 0
    for parameter in parameters:
        if isinstance(parameter, Array):
            scope[parameter.kind] = getattr(numba, parameter.kind)
            given.append(f"carray(pointer(frame[{at}]), (frame[{at + 1}],), {parameter.kind})")
        else:
            given.append(f"frame[{at}]")
        at += parameter.slots
    exec(f"def entry(frame):\n    return function({', '.join(given)})\n", scope)
    frame = numba.types.CPointer(numba.int64)  # type: ignore[no-untyped-call]
    return numba.cfunc(numba.int64(frame), error_model="numpy")(scope["entry"])


def _link(code: bytes, target: _Target) -> Any:
    import llvmlite.binding as llvm

    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target.machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine
