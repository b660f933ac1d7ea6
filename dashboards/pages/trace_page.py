"""The page that says where a text comes from: its longest spans in the texts of a run, and what the run's models wrote.

It shows what `loam trace --text` prints. A text that a model wrote has a link that fills it in.
Limit: the text is a part of the address, as the other choices of a page are, so it is in the browser's history. MAX_CHARS bounds the address.
Cost: that of stages/questions/tracing/trace_text.py, per request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dashboards.data import MAX_RUNS, WrittenText, chosen_run, written_texts
from dashboards.page import DashboardPage, PageContent, PageVisit
from stages.questions.lineage import RunRow, run_rows
from stages.questions.tracing.indexed_texts import texts_of
from stages.questions.tracing.trace_lines import KINDS, became, counted, kinds_named, listed, not_searched_lines
from stages.questions.tracing.trace_start import Start, start
from stages.questions.tracing.trace_text import MIN_WORDS, SpanDocument, TextSpan, trace_text
from stages.record.contract.errors import LoamError, RecipeError

MAX_CHARS = 4096
"""Characters of a text. In an address a character takes up to 12 bytes, and the server accepts a head of 64 KiB (dashboards/app.py)."""
MAX_WORDS = 1000
"""Largest value of the shortest span."""
MAX_SPANS = 100
"""Spans that the page shows. A text that repeats itself can have as many as words."""
TEMPLATE = """
{% set chosen = content.chosen %}
<h2 id="text">Where does this text come from?</h2>
{% if not chosen %}<p>No run is recorded yet. Start one with <code>loam run tiny</code>.</p>{% else %}
<form action="/trace" method="get">
<p><label>Texts of the run <select name="run">{% for run in content.runs %}<option value="{{ run.run_id }}"
{%- if run.run_id == chosen.run_id %} selected{% endif %}>{{ run.alias }}{% if run.name %} ({{ run.name }}){% endif %}</option>{% endfor %}</select></label></p>
<p><textarea name="text" rows="8" maxlength="{{ content.most_chars }}" aria-label="Text" style="width: 100%">
{{ content.text }}</textarea></p>
<p><label>Shortest span (words; in Chinese, Japanese and Thai, characters)
<input type="number" name="min_words" min="1" max="{{ content.most_words }}" value="{{ content.min_words }}"></label>
<button>Find</button> <span class="soft">Up to {{ content.most_chars }} characters.</span></p>
</form>
{% if content.problem %}<p class="bad">{{ content.problem }}</p>{% endif %}
{% if content.origin %}<h2 id="spans">Spans</h2>
{% for line in content.not_searched %}<p class="bad">{{ line }}</p>{% endfor %}
<p class="soft">The longest spans that are verbatim in the {{ content.searched }} that {{ content.origin.alias }} was made from. Spans can
overlap. Trainings after {{ content.origin.alias }} do not count. The steps of a conversation or pair are those that trained any part of it.</p>
{% for span in content.spans %}<h3>{{ "{:,}".format(span.words) }} words, {{ content.counted(span) }}</h3>
<pre>
{{ span.text }}</pre>
<div class="wide"><table><thead><tr><th>kind</th><th>doc_id</th><th>URL, or source and role</th><th>sequences</th><th>became</th></tr></thead><tbody>
{% for one in span.documents %}<tr><td>{{ content.kind(one) }}</td><td>{{ one.doc_id }}</td><td>{{ content.origin_of(one) }}</td><td>{{ content.sequences(one) }}</td>
<td>{{ content.became(one) }}</td></tr>{% endfor %}</tbody></table></div>
{% else %}<p>No {{ content.min_words }} words of it in a row are in the {{ content.searched }} that {{ content.origin.alias }} was made from.</p>{% endfor %}
{% if content.left_out %}<p>{{ "{:,}".format(content.left_out) }} more spans are not shown; {{ content.more }}.</p>{% endif %}{% endif %}
{% if content.written %}<h2 id="samples">What the models of {{ chosen.alias }} wrote</h2>
<div class="wide"><table><thead><tr><th>node</th><th class="number">step</th><th>prompt</th><th>text</th><th></th></tr></thead><tbody>
{% for one in content.written %}<tr><td>{{ one.node }}</td><td class="number">{{ one.step }}</td><td>{{ one.prompt }}</td><td>{{ one.text }}</td>
<td><a href="/trace?run={{ chosen.run_id|urlencode }}&amp;checkpoint={{ one.artifact|urlencode }}&amp;min_words={{ content.min_words }}
{#- #}&amp;text={{ one.text[:content.most_chars]|urlencode }}">where from?
{%- if one.text|length > content.most_chars %} (first {{ "{:,}".format(content.most_chars) }} characters){% endif %}</a></td></tr>
{% endfor %}</tbody></table></div>{% endif %}
{% endif %}
"""


@dataclass(frozen=True, kw_only=True)
class TraceContent(PageContent):
    """The values of the page.

    Attributes:
        runs: The runs to choose from.
        chosen: The run that is asked; None if there is no run.
        checkpoint: Name of the artifact that the answer starts from; if it is empty, that is the last model of the run.
        text: The text that is looked for, with one character per line break.
        min_words: The shortest span, in words.
        problem: Why there is no answer; empty if there is one, or no text.
        origin: What the answer starts from; None without an answer.
        searched: The kinds of texts that were searched, as part of a sentence.
        not_searched: A sentence for each kind that was not, with the reason.
        spans: The first spans of the answer.
        left_out: Number of the other spans.
        written: What the models of the run wrote.
        most_chars: Limit of the text, in characters.
        most_words: Limit of min_words.
        more: What names all that the page leaves out.
    """

    runs: Sequence[RunRow] = ()
    chosen: RunRow | None = None
    checkpoint: str = ""
    text: str = ""
    min_words: int = MIN_WORDS
    problem: str = ""
    origin: Start | None = None
    searched: str = ""
    not_searched: Sequence[str] = ()
    spans: Sequence[TextSpan] = ()
    left_out: int = 0
    written: Sequence[WrittenText] = ()
    most_chars: int = MAX_CHARS
    most_words: int = MAX_WORDS
    more: str = ""

    def counted(self, span: TextSpan) -> str:
        """Returns how often a span occurs, as `loam trace` says it."""
        return counted(span)

    def kind(self, document: SpanDocument) -> str:
        """Returns "document", "conversation" or "preference pair"."""
        return KINDS[document.kind]

    def origin_of(self, document: SpanDocument) -> str:
        """Returns the URL, or source and role; empty for a document without a URL."""
        return document.url or ", ".join(part for part in (document.source, document.role) if part)

    def became(self, document: SpanDocument) -> str:
        """Returns what became of a span in a document, conversation or pair, as `loam trace` says it."""
        return became(document, self.more)

    def sequences(self, document: SpanDocument) -> str:
        """Returns the training sequences of a span in a document, conversation or pair, with the node that numbers them; empty if none."""
        return f"{document.sequences_of} {listed(document.sequences, self.more)}" if document.sequences else ""


def content(visit: PageVisit) -> TraceContent:
    """Returns the answer for the parameters `run` (the newest run if it is empty or unknown), `checkpoint`, `text` and `min_words`."""
    runs = run_rows(visit.home)
    if not runs:
        return TraceContent()
    chosen = chosen_run(runs, visit.parameters.get("run", ""))
    asked = TraceContent(
        runs=runs[:MAX_RUNS] if chosen in runs[:MAX_RUNS] else [*runs[:MAX_RUNS], chosen],
        chosen=chosen,
        checkpoint=visit.parameters.get("checkpoint", ""),
        text=visit.parameters.get("text", "").replace("\r\n", "\n"),  # a browser sends every line break of a form as two characters
        written=written_texts(visit.home, chosen["run_id"]),
    )
    try:
        return _answered(visit, chosen, replace(asked, min_words=_min_words(visit.parameters.get("min_words", ""))))
    except LoamError as error:  # the form and the texts stay on the page
        return replace(asked, problem=str(error))


def _answered(visit: PageVisit, run: RunRow, asked: TraceContent) -> TraceContent:
    """Returns the content with the spans of its text; without a text, as it is.

    Args:
        visit: The request.
        run: The run.
        asked: What is asked.

    Raises:
        RecipeError: The text is too long, there is no such checkpoint, or no kind of texts has an index, also if there is no text yet.
    """
    of = start(visit.home, run["run_id"], asked.checkpoint, tuned=True)
    command = "loam trace --text TEXT " + (f"--checkpoint {of.alias}" if asked.checkpoint else f"--run {run['alias']}")
    if len(asked.text) > MAX_CHARS:
        what = f"The text has {len(asked.text):,} characters; this page takes at most {MAX_CHARS:,}."
        raise RecipeError(what, do=f"Give a shorter part of it, or use `{command}`.")
    if not asked.text.strip():
        texts_of(visit.home, of)  # refuses what a text could not be searched in
        return asked
    found = trace_text(visit.home, of, asked.text, asked.min_words)
    return replace(
        asked,
        origin=of,
        searched=kinds_named(found),
        not_searched=not_searched_lines(found),
        spans=found.spans[:MAX_SPANS],
        left_out=max(0, len(found.spans) - MAX_SPANS),
        more=f"`{command} --json` names all",
    )


def _min_words(given: str) -> int:
    """Returns the parameter `min_words` as a number; the default if it is empty.

    Raises:
        RecipeError: It is not a number from 1 to MAX_WORDS.
    """
    if not given:
        return MIN_WORDS
    if not (given.isascii() and given.isdigit() and len(given) <= len(str(MAX_WORDS)) and 1 <= int(given) <= MAX_WORDS):
        raise RecipeError("The shortest span is not a number of words.", where="min_words", do=f"Give a number from 1 to {MAX_WORDS}.")
    return int(given)


PAGE = DashboardPage("/trace", "Where does this text come from?", TEMPLATE, content)
