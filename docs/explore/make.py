"""Makes docs/explore/digits.html, the demo's layer with 200 digits of MNIST: ``python docs/explore/make.py``.

It trains the layer, in ten seconds on one thread; with ``--page`` it keeps the data and renews the page around them,
after a change of the page's style or script. On one machine the same versions make the same bytes.
"""

import re
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent / "digits.html"
EXAMPLES = 200
DATA = re.compile(r'^<script type="(?:application/json|text/plain)" id=".*?</script>$', re.MULTILINE)


def made() -> str:
    import torch

    from similitude.explore.page import whole_page
    from similitude.reproduce.explored import NOTE, demo_session

    torch.set_num_threads(1)
    return whole_page(demo_session(examples=EXAMPLES).content, NOTE)


def renewed(page: str) -> str:
    """The page as it is made now, with the data that it has."""
    from similitude.explore.page import FILES
    from similitude.page import one_file

    title = re.search(r"<title>([^<]*)</title>", page)
    assert title is not None
    return one_file(FILES, "index.html", title[1], DATA.findall(page))


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")) if "--page" in sys.argv else made(), encoding="utf-8")
