"""The folder of a pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.pipelines.driver.home import Home, Refused, homes, local_path, state_folder
from ottla.pipelines.driver.log_files import close_log, is_open, open_log


def test_the_state_folder_does_not_depend_on_where_a_command_is_typed(tmp_path):
    assert state_folder("given", {"OTTLA_PIPELINES": "/x"}) == Path("given").absolute()
    assert state_folder(None, {"OTTLA_PIPELINES": "/x"}) == Path("/x")
    assert state_folder(None, {"XDG_STATE_HOME": "/s"}) == Path("/s/ottla/pipelines")
    assert state_folder(None, {}).is_absolute()


def test_the_log_is_known_whatever_way_its_folder_was_named(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    home = Home(state_folder("../state"), "p")
    home.make()
    handler = open_log(home.log_file)
    try:
        assert is_open(home.log_file)
        assert not is_open(home.spark_log)
    finally:
        close_log(handler)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "x" * 101, "ä"])
def test_a_name_that_could_be_another_folder_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="is no name of a pipeline"):
        Home(tmp_path, name)


def test_what_is_remembered_is_there_for_the_next_run(tmp_path):
    home = Home(tmp_path, "orders")
    assert home.remembered() == {}
    assert home.status() == {}
    home.make()
    home.remember({"member": "m"})
    home.tell({"state": "running"})
    assert Home(tmp_path, "orders").remembered() == {"member": "m"}
    assert home.status() == {"state": "running"}
    assert sorted(path.name for path in home.folder.iterdir()) == ["pipeline.json", "status.json"]
    assert [each.name for each in homes(tmp_path)] == ["orders"]
    assert list(homes(tmp_path / "none")) == []


def test_what_cannot_be_remembered_says_where(tmp_path):
    home = Home(tmp_path, "orders")
    with pytest.raises(Refused, match=r"cannot write .*/orders/pipeline.json: No such file"):
        home.remember({"member": "m"})


def test_a_folder_that_cannot_be_made_says_which(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match=r"pipeline p cannot make its folder, .*file/p"):
        Home(tmp_path / "file", "p").make()


def test_which_places_are_on_this_machine():
    assert local_path("/a/b") == Path("/a/b")
    assert local_path("file:/a/b%20c") == Path("/a/b c")
    assert local_path("file:///a/b") == Path("/a/b")
    assert local_path("hdfs://names/a") is None
    assert local_path("s3a://bucket/a") is None
