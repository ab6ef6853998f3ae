"""The README as package indexes show it. A link to a file of the clone leads nowhere there: its words stay."""

import re
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE: Final = re.compile(r"^!\[[^\]]*\]\((?!https:)[^)]*\)\n\n", re.MULTILINE)
LINK: Final = re.compile(r"\[([^\]]+)\]\((?!https:)[^)]*\)")


class ReadmeHook(MetadataHookInterface):
    """Called by hatchling when it builds a wheel or a source archive."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the text of `project.readme`."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": shown(text)}


def shown(text: str) -> str:
    """Return a text without relative links and pictures."""
    return LINK.sub(r"\1", PICTURE.sub("", text))
