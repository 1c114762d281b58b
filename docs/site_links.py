"""Hook of mkdocs: links from a page to files outside docs/ go to the repository (MEGATRIX_OWNER owns it)."""

import re
from typing import Any

OUTSIDE = re.compile(r"\]\(((?:\.\./)+)([^)]+)\)")
FOLDER = re.compile(r"\]\(schema/?\)")


def on_page_markdown(markdown: str, /, *, config: Any, **_: Any) -> str:
    """Return the page with absolute links for what is not part of the site."""
    tree = f"https://github.com/{config['extra']['owner']}/megatrix/blob/main"

    def absolute(link: re.Match[str]) -> str:
        return f"]({tree}/{link[2]})"

    return FOLDER.sub(f"]({tree}/docs/schema)", OUTSIDE.sub(absolute, markdown))
