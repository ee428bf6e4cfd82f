from __future__ import annotations

import pytest

import ottla


@pytest.mark.parametrize("name", sorted(set(ottla.__all__)))
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(ottla, name) is not None
    assert name in dir(ottla)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'ottla' has no attribute 'Nope'"):
        ottla.Nope  # noqa: B018 - naming it is the test


def test_the_version_is_the_packages() -> None:
    from importlib.metadata import version

    assert ottla.__version__ == version("ottla")
