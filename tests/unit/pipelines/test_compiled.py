"""Loops as machine code: made once, loaded without numba, never from a file that does not fit."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from ottla.pipelines import compiled
from ottla.pipelines.compiled import Library
from ottla.pipelines.loop import LONG, LONGS, WRITTEN_LONGS, Pinned

PARAMETERS = {"scale": (LONGS, LONG, WRITTEN_LONGS)}
SOURCE = """
    def scale(given, factor, found):
        total = 0
        for index in range(len(given)):
            found[index] = given[index] * factor
            total += found[index]
        return total

    def to_compile():
        return {"scale": scale}
"""
PROGRAM = """
    import sys
    import numpy as np
    from ottla.pipelines.compiled import Library
    from ottla.pipelines.loop import LONG, LONGS, WRITTEN_LONGS

    library = Library("toy", {"scale": (LONGS, LONG, WRITTEN_LONGS)})
    total = library.load()["scale"](np.arange(4), 10, np.zeros(4, np.int64))
    print(total, "numba" in sys.modules)
"""


class Toy:
    """A module with one loop, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write(SOURCE)

    def write(self, source: str) -> None:
        (self.folder / "toy.py").write_text(textwrap.dedent(source))
        sys.modules.pop("toy", None)

    def total(self) -> int:
        """What it comes to in a library that has loaded nothing yet."""
        found = np.zeros(4, np.int64)
        return Library("toy", PARAMETERS).load()["scale"](np.arange(4), 10, found)

    @property
    def file(self) -> Path:
        [file] = (self.folder / "__pycache__").glob("toy.*.o")
        return file

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PROGRAM)],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield Toy(folder)
    sys.modules.pop("toy", None)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modules that are compiled from here on."""
    real, found = compiled._compile, []

    def counted(module, *others):
        found.append(module)
        return real(module, *others)

    monkeypatch.setattr(compiled, "_compile", counted)
    return found


@pytest.fixture(scope="module")
def scale(tmp_path_factory: pytest.TempPathFactory):
    """The loop, compiled once for the tests that only call it."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("packages")
        patch.syspath_prepend(str(folder))
        Toy(folder)
        loop = Library("toy", PARAMETERS).load()["scale"]
        sys.modules.pop("toy", None)
    return loop


def test_the_second_process_loads_what_the_first_has_made_and_needs_no_numba(toy):
    for imported in (True, False):
        with toy.start() as process:
            assert process.communicate(timeout=120)[0] == f"60 {imported}\n"


def test_processes_that_compile_at_once_leave_one_whole_file(toy):
    processes = [toy.start() for _ in range(3)]
    for process in processes:
        with process:
            assert process.communicate(timeout=120)[0] == "60 True\n"
    assert [each.suffix for each in toy.file.parent.iterdir() if each.suffix != ".pyc"] == [".o"]
    with toy.start() as process:
        assert process.communicate(timeout=120)[0] == "60 False\n"


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda content: b"", id="empty"),
        pytest.param(lambda content: content[:40], id="only a part of the key"),
        pytest.param(lambda content: content[:64], id="no code"),
        pytest.param(lambda content: content[:-1], id="torn"),
        pytest.param(lambda content: content + b"\0", id="too long"),
        pytest.param(lambda content: content[:-9] + b"\xff" + content[-8:], id="a byte changed"),
        pytest.param(lambda content: content[64:], id="bare code"),
        pytest.param(lambda content: bytes(32) + content[32:], id="another key"),
    ],
)
def test_a_file_that_is_not_whole_is_made_anew(toy, compilations, spoil):
    toy.total()
    content = toy.file.read_bytes()
    toy.file.write_bytes(spoil(content))
    assert toy.total() == 60
    assert compilations == ["toy", "toy"]
    assert toy.file.read_bytes()[:32] == content[:32]
    assert toy.total() == 60
    assert len(compilations) == 2


def test_a_changed_source_is_compiled_anew_into_the_same_file(toy, compilations):
    assert toy.total() == 60
    toy.write(SOURCE.replace("* factor", "* factor + 1"))
    assert toy.total() == 64
    assert toy.file.exists()
    assert len(compilations) == 2


def test_a_changed_constant_of_another_module_is_noticed(toy, compilations):
    (toy.folder / "numbers_of_toy.py").write_text("MORE = 0\n")
    libraries = [Library("toy", PARAMETERS, imported=("numbers_of_toy",)) for _ in range(2)]
    libraries[0].load()
    (toy.folder / "numbers_of_toy.py").write_text("MORE = 1\n")
    libraries[1].load()
    assert len(compilations) == 2


@pytest.mark.parametrize("number", range(len(compiled._Target().described)))
def test_code_for_another_processor_or_by_another_version_is_not_loaded(
    toy, compilations, monkeypatch, number
):
    toy.total()

    class Other(compiled._Target):
        def __init__(self) -> None:
            super().__init__()
            described = list(self.described)
            described[number] += "x"
            self.described = tuple(described)

    monkeypatch.setattr(compiled, "_Target", Other)
    assert toy.total() == 60
    assert len(compilations) == 2


def test_processors_that_share_a_folder_have_a_file_each(toy, compilations, monkeypatch):
    toy.total()
    real = compiled._Target.short
    monkeypatch.setattr(compiled._Target, "short", "other")
    toy.total()
    monkeypatch.setattr(compiled._Target, "short", real)
    toy.total()
    assert len(compilations) == 2
    assert len(list((toy.folder / "__pycache__").glob("toy.*.o"))) == 2


def test_where_the_module_s_folder_cannot_be_written_the_user_s_is_taken(
    toy, compilations, tmp_path
):
    (toy.folder / "__pycache__").write_text("no folder")
    assert toy.total() == toy.total() == 60
    assert len(compilations) == 1
    assert len(list((tmp_path / "cache" / "ottla").glob("toy.*.o"))) == 1


def test_a_named_folder_comes_first(toy, compilations, tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "named"))
    assert toy.total() == toy.total() == 60
    assert len(compilations) == 1
    assert len(list((tmp_path / "named").glob("toy.*.o"))) == 1


def test_with_no_folder_at_all_it_works_and_that_is_said(
    toy, compilations, tmp_path, monkeypatch, caplog
):
    (toy.folder / "__pycache__").write_text("no folder")
    (tmp_path / "cache").write_text("no folder")
    assert toy.total() == toy.total() == 60
    assert len(compilations) == 2
    assert "toy is compiled anew by each worker, for want of a cache: " in caplog.text


def test_a_user_without_a_home_gets_no_folder_named_after_that(toy, tmp_path, monkeypatch, caplog):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    monkeypatch.chdir(tmp_path)
    (toy.folder / "__pycache__").write_text("no folder")
    assert toy.total() == 60
    assert not (tmp_path / "~").exists()
    assert [each.levelno for each in caplog.records] == [logging.WARNING]


def test_what_is_packed_is_the_file(toy):
    place, content = Library("toy", PARAMETERS).packed()
    assert place.endswith(f"/__pycache__/{toy.file.name}")
    assert content == toy.file.read_bytes()


@pytest.mark.parametrize("line", ["raise ValueError", "print(total)", "total += len(given.copy())"])
def test_a_loop_that_needs_more_than_the_c_library_is_refused(toy, line):
    toy.write(
        SOURCE.replace("return total", f"if total == 7:\n            {line}\n        return 1")
    )
    with pytest.raises(RuntimeError, match="the loops of toy need "):
        toy.total()


# -- what a loop takes


def test_a_loop_reads_and_writes_the_arrays_it_is_given(scale):
    found = np.zeros(3, np.int64)
    assert scale(np.array([1, -2, 3]), 2**40, found) == 2 * 2**40
    assert found.tolist() == [2**40, -(2**41), 3 * 2**40]


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(4, np.int32),
        np.zeros(4, np.uint64),
        np.zeros(4, ">i8"),
        np.zeros((4, 1), np.int64),
        np.zeros((), np.int64),
        np.zeros(8, np.int64)[::2],
        np.frombuffer(bytes(32), np.int64),
    ],
    ids=["narrow", "unsigned", "foreign order", "rows", "no array", "gaps", "not to be written"],
)
def test_an_array_that_does_not_fit_is_refused(scale, array):
    with pytest.raises(TypeError):
        scale(np.zeros(4, np.int64), 1, array)


@pytest.mark.parametrize("count", [0, 2, 4])
def test_too_few_and_too_many_arguments_are_refused(scale, count):
    with pytest.raises(TypeError, match=f"{count} arguments are given, 3 are needed"):
        scale(*[np.zeros(4, np.int64)] * count)


def test_numbers_are_whole_ones_of_any_kind(scale):
    found = np.zeros(4, np.int64)
    assert scale(np.arange(4), np.int32(10), found) == 60
    with pytest.raises(TypeError):
        scale(np.arange(4), 1.5, found)


def test_a_frame_is_called_again_with_what_has_changed(scale):
    given, found = np.arange(4), Pinned(np.zeros(4, np.int64))
    frame = scale.frame()
    frame.put(0, given, 10)
    with pytest.raises(TypeError, match="argument 2 is missing"):
        frame()
    frame.put(2, found)
    assert frame() == 60
    frame.put(1, 100)
    assert frame() == 600
    assert found.array.tolist() == [0, 100, 200, 300]
    with pytest.raises(TypeError):
        frame.put(0, np.arange(4.0))
    assert frame() == 600


def test_a_frame_keeps_its_arrays_alive(scale):
    frame = scale.frame()
    frame.put(0, np.full(100_000, 3), 1, np.zeros(100_000, np.int64))
    others = [np.full(100_000, 5) for _ in range(10)]
    assert frame() == 300_000
    assert len(others) == 10
