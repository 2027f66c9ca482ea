"""What `make docs` does to pages beside MkDocs."""

from __future__ import annotations

import re
from typing import Any


def on_page_content(html: str, **_: Any) -> str:
    """Docstrings name things by Sphinx's roles, of which Markdown knows nothing: the names alone."""
    return re.sub(r":(?:class|func|meth|mod|data|attr):<code>~?(?:[\w.]+\.(?=\w+</code>))?", "<code>", html)
