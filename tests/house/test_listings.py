"""What `make generate` makes of the changelog and of the packages that are installed."""

from email.message import Message

import pytest

from tools.generate import upgrades
from tools.listings import licences
from tools.readme import shown

CHANGELOG = """# Changelog

## 0.3.0 (not released)

More. Schema version 9.

## 0.2.1

Mended. Schema version 8.

## 0.2.0

The second. Schema
version 8.

### Names that have changed

- `old` is `new`.

## 0.1.0

The first. Schema version 6.
"""


def test_an_upgrade_lists_the_migrations_and_the_names_of_each_version() -> None:
    assert upgrades.shown(CHANGELOG, list(range(1, 10)))[2:] == [
        "| 0.3.0 (not released) | 9 | 0009 |",
        "| 0.2.1 | 8 | none |",
        "| 0.2.0 | 8 | 0007, 0008 |",
        "| 0.1.0 | 6 | 0001, 0002, 0003, 0004, 0005, 0006 |",
        "",
        "### Names that have changed in 0.2.0",
        "",
        "- `old` is `new`.",
        "",
    ]


def test_a_version_without_a_schema_version_is_refused() -> None:
    with pytest.raises(ValueError, match=r"of 0\.2\.1"):
        upgrades.shown(CHANGELOG.replace("Mended. Schema version 8.", "Mended."), [])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"License-Expression": "MIT"}, "MIT"),
        ({"License-Expression": "MIT AND PSF-2.0"}, "MIT AND PSF-2.0"),
        ({"License": "BSD 3-Clause License\n\nCopyright: others"}, "BSD-3-Clause"),
        ({"License": "Copyright: others", "Classifier": "License :: OSI Approved :: BSD License"}, "BSD-3-Clause"),
        ({}, None),
        ({"License": "See the file"}, None),
        ({"License-Expression": "AGPL-3.0-only"}, None),
        ({"License-Expression": "MIT AND GPL-3.0-only"}, None),
        ({"Classifier": "License :: OSI Approved :: GNU General Public License v2 (GPLv2)"}, None),
        ({"License-Expression": "(MIT)"}, None),
    ],
)
def test_a_licence_is_known_and_without_conditions(
    fields: dict[str, str], said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = Message()
    for key, value in fields.items():
        message[key] = value
    monkeypatch.setattr(licences.metadata, "metadata", lambda name: message)
    if said is None:
        with pytest.raises(ValueError, match="some-package has"):
            licences.of_package("some-package")
    else:
        assert licences.of_package("some-package") == said


def test_a_condition_has_a_reason_only_if_the_package_is_listed() -> None:
    listed = (licences.ROOT / licences.FILE).read_text(encoding="utf-8")
    assert [name for name in licences.CONDITIONS if f"\n| {name} |" not in listed] == []


def test_the_readme_of_an_index_has_no_link_that_leads_nowhere() -> None:
    text = "![a picture](docs/a.svg)\n\nSee [the page](docs/page.md#there), [other](https://example.org/).\n"
    assert shown(text) == "See the page, [other](https://example.org/).\n"
