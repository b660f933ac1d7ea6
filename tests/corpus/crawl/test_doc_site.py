"""The documentation site: pure pages, editions that differ as editions do, a server that ends with its parent."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from stages.corpus.crawl.doc_site import SiteError, build_site, render, running_site
from stages.corpus.extract.html import extract_text

PACKAGES = ["datasketch", "datatrove"]


def all_pages(edition: str) -> dict[str, str]:
    """Returns path -> HTML of every module page of an edition."""
    site = build_site(PACKAGES, ["stable", "latest"], 1000, 200)
    paths = [f"{m.package}/{m.name}.html" for m in site.modules]
    answers = {path: render(site, f"/{edition}/{path}") for path in paths}
    return {path: answer.body for path, answer in answers.items() if answer.status == 200}


def test_every_link_answers_but_those_meant_to_lead_nowhere() -> None:
    site = build_site(PACKAGES, ["stable", "latest"], 60, 200)
    todo, seen, missing = ["/"], set(), []
    while todo:
        path = todo.pop()
        seen.add(path)
        answer = render(site, path)
        if answer.status != 200:
            missing.append(path.rpartition("/")[2])
            continue
        for link in re.findall(r'href="([^"#]+)"', answer.body):
            target = link if link.startswith("/") else path.rpartition("/")[0] + "/" + link
            if "://" not in link and not target.startswith("/search") and target not in seen and target not in todo:
                todo.append(target)
    assert sorted(set(missing)) == ["changelog.html", "contributing.html"]
    assert 40 < len(seen) < 80


def test_editions_repeat_each_other_with_differences() -> None:
    stable, latest = all_pages("stable"), all_pages("latest")
    assert set(stable) <= set(latest)
    texts = {path: (extract_text(stable[path]), extract_text(latest[path])) for path in stable}
    same = sum(a == b for a, b in texts.values())
    assert len(stable) * 0.6 < same < len(stable)
    assert all(stable[path] != latest[path] for path in stable)  # the banner and the footer always differ


def test_pages_are_a_function_of_the_packages() -> None:
    assert all_pages("stable") == all_pages("stable")


def test_main_text_has_prose_and_code_but_no_navigation() -> None:
    text = extract_text(all_pages("stable")["datasketch/datasketch.lsh.html"])
    assert "Class MinHashLSH\n\nMinHashLSH(threshold=0.9" in text
    assert "Previous:" not in text
    assert "loam-docsite" not in text


def test_page_cap_and_robots() -> None:
    site = build_site(PACKAGES, ["stable", "latest"], 9, 200)
    count = sum(render(site, f"/{e}/{m.package}/{m.name}.html").status == 200 for m in site.modules for e in site.editions)
    assert 7 <= count <= 9
    assert "Disallow: /search" in render(site, "/robots.txt").body
    assert render(site, "/nowhere/else").status == 404


def test_server_serves_and_stops() -> None:
    with running_site(["datasketch"], ["stable"], 50, 200) as port, urllib.request.urlopen(f"http://127.0.0.1:{port}/robots.txt") as answer:
        assert answer.read().startswith(b"User-agent: *")
        assert "Date" not in answer.headers
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=2)


def test_server_that_cannot_start_says_why() -> None:
    with (
        pytest.raises(SiteError, match="did not start: .*'no-such-package' is not installed"),
        running_site(["no-such-package"], ["a"], 1, 1),
    ):
        pass


def test_server_dies_with_a_killed_parent() -> None:
    code = (
        "from stages.corpus.crawl.doc_site import running_site\n"
        "with running_site(['datasketch'], ['stable'], 5, 200) as port:\n    print(port, flush=True); input()\n"
    )
    root = Path(__file__).resolve().parents[3]
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    port = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait(timeout=60)
    for _ in range(100):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/robots.txt", timeout=2).close()
        except OSError:
            break
        time.sleep(0.1)
    else:
        pytest.fail("the server outlived its parent by ten seconds")
    for stream in (parent.stdin, parent.stdout):
        stream.close()
